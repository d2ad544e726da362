"""What a launch wants, what a preflight reads on the host about it, and the program that reads it."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import AwareDatetime, ValidationError

from opslib.domain.facts.gpu import gpu_memory_command
from opslib.domain.facts.gpu_health import gpu_health_command
from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import HostSettings
from opslib.domain.lock import LockHolder, lock_path
from opslib.domain.orphan import Holder
from opslib.domain.states import Value
from opslib.domain.survey import Filesystem
from opslib.domain.survey_reading import GPU_TIMEOUT_S, SurveyReading, survey_program
from opslib.errors import UnexpectedAnswer

_N_SAMPLES = 2  # besides the survey's own
_PAUSE_S = 0.4


class Wanted(Value):
    """What is about to be launched, as far as a host must be fit for it."""

    unit: str
    port: int
    gpus: tuple[int, ...] = ()
    gpu_memory_utilization: float = 0.9
    model_path: str = ""
    flags: tuple[str, ...] = ()  # the words after `vllm serve MODEL`
    own_units: tuple[str, ...] = ()  # whose memory and port are given back before the start
    guard_wait_s: int = 0  # how long the unit waits for GPU memory by itself
    max_open_files: int = 1_048_576  # LimitNOFILE= of the unit
    may_move_port: bool = False  # whether the runbook may look for a free port
    holder: LockHolder | None = None  # who asks


class HolderReading(Holder):
    """A process that holds GPU memory, as `preflight` read it: of its command only whether it is an engine's."""

    name: str = ""
    is_engine_command: bool = False


class EngineReading(Value):
    """The installed engine: whether its program is there, its flags (none: not known), the CUDA of its torch."""

    is_program: bool
    flags: tuple[str, ...] = ()
    cuda: str = ""


class ReceiptReading(Value):
    """How many of the model's files were hashed and are as they were, changed since, or were never hashed."""

    n_fresh: int
    n_changed: int
    n_missing: int
    kept_at: AwareDatetime


class ModelReading(Value):
    """The model's directory as the unit's user sees it."""

    path: str
    problem: str = ""
    n_files: int = 0
    unreadable: tuple[str, ...] = ()
    n_unreadable: int = 0
    size_bytes: int = 0
    receipts: ReceiptReading | None = None


class PlacesReading(Value):
    """What lies on disks."""

    user: str
    model: ModelReading
    cache: Filesystem
    tmp: Filesystem


class LimitsReading(Value):
    """What the kernel, PID 1 and the login allow; -1 for no limit."""

    own: Mapping[str, int]
    system: Mapping[str, int] = {}
    nr_open: int = 0


class LockReading(Value):
    """Whom the unit's lock names, and whether they still have it."""

    holder: Any = None
    pid: int | None = None
    is_held: bool = False


class PreflightReading(Value):
    """Everything that the on-host program `preflight` read; None for what never came back."""

    survey: SurveyReading
    settings: str = ""
    samples: tuple[str, ...] = ()
    owners: tuple[HolderReading, ...] = ()
    engine: EngineReading | None = None
    places: PlacesReading | None = None
    limits: LimitsReading
    lock: LockReading


def preflight_program(settings: HostSettings, wanted: Wanted) -> tuple[str, dict[str, object]]:
    """Asks everything in one round trip: the on-host program `preflight` and its arguments."""
    _, survey = survey_program(settings, [wanted.unit, *wanted.own_units])
    commands = {"settings": settings_command(wanted.unit), "owners": owners_command()}
    if wanted.gpus:
        commands |= {"gpu_detail": gpu_health_command(), "gpus": gpu_memory_command()}
    asked: Any = survey["commands"]
    timeouts: Any = survey["timeouts_s"]
    is_user = settings.scope == "user"
    environment = settings.environment
    return "preflight", {
        **survey,
        "commands": {**asked, **{name: list(argv) for name, argv in commands.items()}},
        "timeouts_s": {**timeouts, "gpu_detail": GPU_TIMEOUT_S},
        "n_samples": _N_SAMPLES if wanted.gpus else 0,
        "pause_s": _PAUSE_S,
        "user": "",
        "default_user": "" if is_user else "root",
        "model_path": wanted.model_path,
        "state_dir": settings.state_dir,
        "cache_dir": environment.get("VLLM_CACHE_ROOT") or environment.get("XDG_CACHE_HOME") or "",
        "lock_path": lock_path(settings, wanted.unit),
    }


def settings_command(unit: str) -> tuple[str, ...]:
    """Asks as whom systemd would start a unit; nobody is named where it is root, or the unit isn't known."""
    return ("systemctl", "show", "--property=LoadState,User", "--", unit_name(unit))


def owners_command() -> tuple[str, ...]:
    """Asks which start of them runs, of units whose names are appended, one block each."""
    return ("systemctl", "show", "--property=Id,ActiveState,InvocationID,MainPID")


def parse_preflight(text: str) -> PreflightReading:
    """Reads the one JSON document of the on-host program; raises UnexpectedAnswer for anything else."""
    try:
        return PreflightReading.model_validate(json.loads(text))
    except (ValueError, RecursionError, ValidationError) as error:
        raise UnexpectedAnswer(f"the preflight can't be read: {text.strip()[:200]!r}") from error
