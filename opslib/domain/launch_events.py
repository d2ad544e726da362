"""What is seen of a launch, and what is known about it: events, status, changes."""

from datetime import datetime
from enum import StrEnum

from opslib.domain.engine_log import Phase
from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import Value


class LaunchState(StrEnum):
    """Where a launch stands; all but *starting*, *restarting*, *stalled* and *unreachable* end the watch."""

    STARTING = "starting"
    RESTARTING = "restarting"  # systemd waits to start it again, and this watch has seen no crash
    STALLED = "stalled"  # no new line for long; may be a silent compilation
    UNREACHABLE = "unreachable"  # the link is lost: unknown, not failed
    READY = "ready"
    CRASHED = "crashed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"

    @property
    def is_final(self) -> bool:
        """Whether nothing more is waited for."""
        return self in {LaunchState.READY, LaunchState.CRASHED, LaunchState.FAILED, LaunchState.TIMED_OUT}


class JournalSeen(Value):
    """A journal entry of the unit came in."""

    at: datetime
    entry: JournalEntry


class HealthSeen(Value):
    """`/health` was asked; None where nothing listens or answers."""

    at: datetime
    status_code: int | None


class UnitSeen(Value):
    """systemd was asked about the unit."""

    at: datetime
    status: UnitStatus


class GpuSeen(Value):
    """GPU memory was asked."""

    at: datetime
    gpus: tuple[Gpu, ...]


class TickSeen(Value):
    """Nothing changed on the host, and the link works."""

    at: datetime


class LinkLost(Value):
    """The host can't be heard any more; nothing follows from that about the unit."""

    at: datetime
    reason: str = ""


class DeadlineReached(Value):
    """The watch was given so much time and no more."""

    at: datetime


LaunchEvent = JournalSeen | HealthSeen | UnitSeen | GpuSeen | TickSeen | LinkLost | DeadlineReached


class Crash(Value):
    """A start that ended: which invocation, how it was noticed, when it died and when that was seen."""

    invocation_id: str
    noticed_by: str  # "journal" | "n_restarts" | "invocation_id" | "sub_state" | "active_state"
    text: str
    seen_at: datetime
    died_at: datetime | None = None
    exit_status: str = ""  # as systemd writes it: "exited, status=1/FAILURE"


class LaunchChange(Value):
    """One thing that became different, for a timeline."""

    at: datetime
    what: str  # "state" | "guard" | "phase" | "health" | "unit" | "invocation" | "restarts" | "crash" | "link"
    text: str


class LaunchStatus(Value):
    """All that is known about a launch at `at`."""

    state: LaunchState = LaunchState.STARTING
    reason: str = ""
    since: datetime
    at: datetime
    phase: Phase | None = None
    percent: int | None = None
    invocation_id: str = ""
    n_restarts: int = 0
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    main_pid: int = 0
    health_status_code: int | None = None
    gpus: tuple[Gpu, ...] = ()
    last_line: str = ""
    last_line_at: datetime | None = None
    last_heard_at: datetime
    waiting_for: str = ""  # what the unit's guard waits for before the engine is started
    n_links_lost: int = 0
    unheard_s: float = 0.0  # how long the host could not be heard, in all
    cursor: str = ""
    crash: Crash | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the launch began."""
        return (self.at - self.since).total_seconds()

    @property
    def waiting_words(self) -> str:
        """What an operator reads while ExecStartPre waits; "" when it doesn't."""
        return f"activating, waiting for GPU memory held by {self.waiting_for}" if self.waiting_for else ""

    @property
    def quiet_s(self) -> float:
        """Seconds since the engine last told something new."""
        return (self.at - (self.last_line_at or self.since)).total_seconds()


def status_changes(before: LaunchStatus, after: LaunchStatus) -> tuple[LaunchChange, ...]:
    """What differs between two statuses, in the order an operator reads."""
    pairs = (
        ("unit", (before.active_state, before.sub_state), (after.active_state, after.sub_state)),
        ("invocation", before.invocation_id, after.invocation_id),
        ("restarts", before.n_restarts, after.n_restarts),
        ("health", before.health_status_code, after.health_status_code),
        ("guard", before.waiting_for, after.waiting_for),
        ("phase", before.phase, after.phase),
        ("crash", before.crash, after.crash),
        ("state", before.state, after.state),
    )
    return tuple(
        LaunchChange(at=after.at, what=what, text=_words(what, after)) for what, old, new in pairs if old != new
    )


def _words(what: str, status: LaunchStatus) -> str:
    title = status.phase.title if status.phase else ""
    return {
        "unit": f"{status.active_state} ({status.sub_state})",
        "invocation": status.invocation_id,
        "restarts": str(status.n_restarts),
        "health": "closed" if status.health_status_code is None else str(status.health_status_code),
        "guard": status.waiting_words or "the GPU guard waits no longer",
        "phase": title if status.percent is None else f"{title} {status.percent} %",
        "crash": status.crash.text if status.crash else "",
        "state": f"{status.state}: {status.reason}".rstrip(": "),
    }[what]
