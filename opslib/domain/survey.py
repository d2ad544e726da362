"""One look over a host: what was read there, and what it comes to, topic by topic."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, ValidationError

from opslib.domain.facts.gpu import Gpu, gpu_memory_command, gpu_processes_command
from opslib.domain.facts.identity import Identity
from opslib.domain.facts.systemd import PROPERTIES, UnitStatus, unit_name
from opslib.domain.host import HostSettings
from opslib.domain.states import CheckResult, State, Value
from opslib.errors import UnexpectedAnswer

COMMAND_TIMEOUT_S = 5.0
_MORE_PROPERTIES = ("Restart", "StartLimitBurst", "ExecStart")


class CommandAnswer(Value):
    """What a command said on the host, or why it said nothing."""

    text: str = ""
    exit_status: int | None = None
    problem: Literal["", "missing", "timeout"] = ""
    error: str = ""


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


class Filesystem(Value):
    """How large a file system is and how much of it an ordinary login can still fill."""

    path: str
    total_bytes: int = 0
    free_bytes: int = 0
    problem: str = ""

    @property
    def free_percent(self) -> float:
        """Free share in percent; 0 where the size isn't known."""
        return 100 * self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class HostMemory(Value):
    """The host's memory; available is what programs can get without swapping."""

    total_bytes: int
    available_bytes: int


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


class SurveyCheck(CheckResult):
    """One topic of a survey: its state, sentence and evidence, and what to do about it."""

    next_step: str = ""


class EngineUnit(Value):
    """An inference engine's unit, and what it comes to."""

    unit: str
    state: State
    summary: str
    next_step: str = ""
    status: UnitStatus
    engine: str = ""
    model: str = ""
    port: int | None = None
    health_status_code: int | None = None
    engine_version: str = ""
    running_s: float | None = None  # since the main process was started


class GpuHolder(Value):
    """A process that holds memory of a GPU."""

    gpu_index: int
    pid: int
    name: str
    user: str = ""
    unit: str = ""
    memory_used_bytes: int | None = None
    age_s: float | None = None


class Clock(Value):
    """How far the host's clock is ahead of the controller's, and how far off that can be (half a round trip)."""

    offset_s: float
    uncertainty_s: float


class HostSurvey(Value):
    """What one look over a host came to; its state is the worst of its checks."""

    host: str
    state: State
    summary: str
    next_step: str = ""
    checks: tuple[SurveyCheck, ...] = ()
    surveyed_at: datetime
    duration_s: float
    identity: Identity | None = None
    units: tuple[EngineUnit, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    holders: tuple[GpuHolder, ...] = ()
    driver_version: str = ""
    engine_version: str = ""
    systemd_version: str = ""
    filesystems: Mapping[str, Filesystem] = {}
    memory: HostMemory | None = None
    clock: Clock | None = None
    uptime_s: float | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the host answered at all."""
        return self.identity is not None

    @property
    def knows_units(self) -> bool:
        """Whether its engine units could be found out; none is an answer as well."""
        return self.is_reached and all(check.name != "units" or check.state is State.OK for check in self.checks)

    @property
    def who(self) -> str:
        """Who answered, in a few words."""
        who = self.identity
        return f"{who.user}@{who.hostname}, boot {who.boot_id[:8]}" if who else "nobody answered"


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
    except (ValueError, ValidationError) as error:
        raise UnexpectedAnswer(f"the survey can't be read: {text.strip()[:200]!r}") from error


def unreached(
    host: str, reason: str, next_step: str, *, surveyed_at: datetime, duration_s: float, is_refused: bool = False
) -> HostSurvey:
    """The row of a host that could not be asked: its state is unknown, never failed."""
    short = reason.split(" (")[0].split(": it is ")[0]
    summary = f"refused: {short}" if is_refused else f"could not find out: {short}"
    evidence = (reason,) if reason != short else ()
    check = SurveyCheck(name="reach", state=State.UNKNOWN, summary=summary, evidence=evidence, next_step=next_step)
    return HostSurvey(
        host=host,
        state=State.UNKNOWN,
        summary=summary,
        next_step=next_step,
        checks=(check,),
        surveyed_at=surveyed_at,
        duration_s=duration_s,
    )


def age_words(seconds: float) -> str:
    """A span of time in its largest unit, as an operator says it.

    >>> [age_words(s) for s in (8.2, 300, 5 * 3600, 4e5)]
    ['8 s', '5 min', '5 h', '4 d']
    """
    for unit_s, unit, least in ((86400, "d", 2 * 86400), (3600, "h", 2 * 3600), (60, "min", 120)):
        if seconds >= least:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{max(0, int(seconds))} s"
