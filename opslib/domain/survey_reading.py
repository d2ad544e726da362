"""What one look over a host reads there: the commands that it runs, and what they and /proc said."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import AwareDatetime, ValidationError

from opslib.domain.facts.gpu import gpu_memory_command, gpu_processes_command
from opslib.domain.facts.identity import Identity
from opslib.domain.facts.systemd import PROPERTIES, unit_name
from opslib.domain.host import HostSettings
from opslib.domain.states import Value
from opslib.domain.survey import Filesystem, HostMemory
from opslib.errors import UnexpectedAnswer

COMMAND_TIMEOUT_S = 5.0
GPU_TIMEOUT_S = 12.0  # without persistence mode the driver wakes every GPU for each nvidia-smi
_MORE_PROPERTIES = ("Restart", "StartLimitBurst", "ExecStart")


class CommandAnswer(Value):
    """What a command said on the host, or why it said nothing."""

    text: str = ""
    exit_status: int | None = None
    problem: Literal["", "missing", "timeout"] = ""
    error: str = ""
    duration_s: float | None = None


class HealthReading(Value):
    """What `/health` answered: a status code, or why there is none ("closed", "silent", ...)."""

    status_code: int | None = None
    problem: str = ""


class VersionReading(Value):
    """An installed version, or why it isn't known."""

    version: str = ""
    problem: str = ""


class UnitReading(Value):
    """One unit as the host told it; `show` is `systemctl show` without the command line."""

    id: str
    show: str
    main_pid: int = 0
    engine: str = ""
    model: str = ""
    port: int | None = None
    health: HealthReading | None = None
    version: VersionReading | None = None


class ProcessReading(Value):
    """A process that matters, and the unit that it belongs to; everything empty once it is gone."""

    pid: int
    name: str = ""
    user: str = ""
    started_at: AwareDatetime | None = None
    unit: str = ""
    is_gone: bool = False


class KernelReading(Value):
    """How many kernel lines of this boot could be read, and those that tell of trouble, as journalctl's JSON."""

    n_lines: int
    lines: tuple[str, ...] = ()
    problem: str = ""


class SurveyReading(Value):
    """Everything that the on-host program `survey` read."""

    began_at: AwareDatetime
    ended_at: AwareDatetime
    identity: Identity
    uptime_s: float
    container: str = ""
    units: tuple[UnitReading, ...]
    units_problem: str = ""
    answers: Mapping[str, CommandAnswer]
    kernel: KernelReading | None
    processes: tuple[ProcessReading, ...]
    filesystems: Mapping[str, Filesystem]
    memory: HostMemory
    journal: Mapping[str, bool]
    engine: VersionReading

    def answer(self, name: str) -> CommandAnswer:
        """What the command of this name said; an empty answer where it was not asked or never came back."""
        return self.answers.get(name, CommandAnswer())


def survey_program(
    settings: HostSettings, units: Sequence[str] = (), *, is_units_only: bool = False
) -> tuple[str, dict[str, object]]:
    """Asks everything in one round trip: the on-host program `survey` and its arguments.

    Without `units` the host looks for services that run an inference engine. `is_units_only` leaves out GPUs and the
    kernel's lines.
    """
    commands = {"list_units": list_units_command(), "show": show_units_command(), "listeners": listeners_command()}
    if not is_units_only:
        commands |= {
            "gpus": gpu_memory_command(),
            "gpu_processes": gpu_processes_command(),
            "kernel": kernel_lines_command(),
            "systemd": systemd_version_command(),
        }
    return "survey", {
        "units": [unit_name(unit) for unit in units],
        "unit_dir": settings.unit_dir,
        "vllm": settings.vllm,
        "filesystems": {"models": settings.models_dir, "root": "/", "shm": "/dev/shm"},  # noqa: S108
        "commands": {name: list(argv) for name, argv in commands.items()},
        "timeout_s": COMMAND_TIMEOUT_S,
        "timeouts_s": {} if is_units_only else {"gpus": GPU_TIMEOUT_S, "gpu_processes": GPU_TIMEOUT_S},
    }


def list_units_command() -> tuple[str, ...]:
    """Asks for the names of all loaded services, the first word of each line."""
    return ("systemctl", "list-units", "--type=service", "--all", "--plain", "--no-legend", "--no-pager")


def show_units_command() -> tuple[str, ...]:
    """Asks for state, restarts and command line of units whose names are appended, one block each."""
    return ("systemctl", "show", "--property=" + ",".join((*PROPERTIES, *_MORE_PROPERTIES)))


def listeners_command() -> tuple[str, ...]:
    """Asks for all TCP listeners; process names need root."""
    return ("ss", "-H", "-ltnp")


def kernel_lines_command() -> tuple[str, ...]:
    """Asks for the kernel's lines since boot; needs root or the group systemd-journal."""
    fields = "--output-fields=MESSAGE,PRIORITY,_TRANSPORT"
    return ("journalctl", "--output=json", "--all", "--no-pager", "--quiet", "--dmesg", fields)


def systemd_version_command() -> tuple[str, ...]:
    """Asks for systemd's version, the second word of the answer."""
    return ("systemctl", "--version")


def parse_survey(text: str) -> SurveyReading:
    """Reads the one JSON document of the on-host program; raises UnexpectedAnswer for anything else."""
    try:
        return SurveyReading.model_validate(json.loads(text))
    except (ValueError, RecursionError, ValidationError) as error:
        raise UnexpectedAnswer(f"the survey can't be read: {text.strip()[:200]!r}") from error
