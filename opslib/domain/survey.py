"""What one look over a host came to, topic by topic."""

from collections.abc import Mapping
from datetime import datetime

from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.identity import Identity
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import CheckResult, State, Value


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
    listening_ports: tuple[int, ...] = ()  # of the unit's own processes
    health_status_code: int | None = None
    engine_version: str = ""
    running_s: float | None = None  # since the main process was started


class GpuHolder(Value):
    """A process that holds memory of a GPU."""

    gpu_index: int
    pid: int
    name: str
    user: str = ""
    unit: str = ""  # without ".service"; "" where it is of none
    memory_used_bytes: int | None = None  # None where the driver doesn't say
    age_s: float | None = None  # since the process was started


class Clock(Value):
    """How far the host's clock is ahead of the controller's, and how far off that can be (half a round trip)."""

    offset_s: float
    uncertainty_s: float


class LastRun(Value):
    """The newest run of a kind that this controller keeps a record of."""

    record: str  # the name of its folder
    runbook: str
    state: str  # the outcome's state, or the run's status where it has none
    at: datetime
    output_throughput: float | None = None  # tokens per second, at its best level


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
    headroom_bytes: int | None = None  # the least that is free on a GPU in use; where none is, on any GPU
    last_deploy: LastRun | None = None  # from the controller's records, not from the host
    last_benchmark: LastRun | None = None

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


def unreached(
    host: str, reason: str, next_step: str, *, surveyed_at: datetime, duration_s: float, is_refused: bool = False
) -> HostSurvey:
    """The row of a host that could not be asked: its state is unknown, never failed."""
    short = reason.split(" (", maxsplit=1)[0].split(": it is ", maxsplit=1)[0]
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
