"""What is known about a launch at one moment, and what became different between two."""

from datetime import datetime
from enum import StrEnum

from opslib.domain.engine_log import Phase
from opslib.domain.facts.gpu import Gpu
from opslib.domain.launch_events import AnswerSeen
from opslib.domain.launch_movement import Movement
from opslib.domain.launch_phases import PhaseSpan
from opslib.domain.states import State, Value

ABORT_WORDS = "the operator ended the watch; the unit goes on"
_SLOW_AFTER_S = 60.0  # without a line, before it is said that it moves


class LaunchState(StrEnum):
    """Where a launch stands; all but *starting*, *restarting*, *stalled* and *unreachable* end the watch."""

    STARTING = "starting"
    RESTARTING = "restarting"  # systemd waits to start it again
    STALLED = "stalled"  # no line, no disk, no GPU, no processor for long
    UNREACHABLE = "unreachable"  # the link is lost: unknown, not failed
    READY = "ready"
    CRASHED = "crashed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"  # by the operator; the unit goes on

    @property
    def is_final(self) -> bool:
        """Whether nothing more is waited for."""
        return self in FINAL


FINAL = frozenset(
    {LaunchState.READY, LaunchState.CRASHED, LaunchState.FAILED, LaunchState.TIMED_OUT, LaunchState.ABORTED}
)


_JUDGED = {
    LaunchState.READY: State.OK,
    LaunchState.CRASHED: State.CRITICAL,
    LaunchState.FAILED: State.CRITICAL,
    LaunchState.TIMED_OUT: State.CRITICAL,
    LaunchState.STALLED: State.WARNING,
}


class Crash(Value):
    """A start that ended: which invocation, how it was noticed, when it died and when that was seen."""

    invocation_id: str
    noticed_by: str  # "journal" | "n_restarts" | "invocation_id" | "sub_state" | "active_state" | "result" | "boot"
    text: str
    seen_at: datetime
    died_at: datetime | None = None
    exit_status: str = ""  # as systemd writes it: "exited, status=1/FAILURE"
    phase: str = ""  # in which the start was

    @property
    def words(self) -> str:
        """How it was noticed, and how the start ended where that says more.

        >>> now = datetime(2026, 11, 29)
        >>> text = "NRestarts went from 0 to 1"
        >>> Crash(invocation_id="", noticed_by="", text=text, seen_at=now, exit_status="killed, status=9/KILL").words
        'NRestarts went from 0 to 1 (killed, status=9/KILL)'
        """
        is_said = not self.exit_status or self.exit_status in self.text
        return self.text if is_said else f"{self.text} ({self.exit_status})"


class LaunchChange(Value):
    """One thing that became different, for a timeline."""

    at: datetime
    what: str  # a field of the status: "state", "phase", "health", "exit", "note", …
    text: str


class LaunchStatus(Value):
    """All that is known about a launch at `at`."""

    state: LaunchState = LaunchState.STARTING
    reason: str = ""
    since: datetime
    at: datetime
    phase: Phase | None = None
    percent: int | None = None
    phases: tuple[PhaseSpan, ...] = ()  # of the present start
    eta_s: float | None = None
    invocation_id: str = ""
    boot_id: str = ""
    n_restarts: int = 0
    budget_words: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    main_pid: int = 0
    ended_pid: int = 0  # a main process that has ended, while nothing else is known of it
    health_status_code: int | None = None
    health_latency_ms: float | None = None
    port: int | None = None  # where the engine is asked, by its own command line
    answer: AnswerSeen | None = None
    gpus: tuple[Gpu, ...] = ()
    movement: Movement = Movement()
    last_line: str = ""
    last_line_at: datetime | None = None
    last_heard_at: datetime
    waiting_for: str = ""  # what the unit's guard waits for before the engine is started
    n_links_lost: int = 0
    unheard_s: float = 0.0  # how long the host could not be heard, in all
    is_unheard: bool = False  # the time was up while nothing could be heard of the unit
    n_dropped: int = 0  # entries that journald says it did not store
    notes: tuple[str, ...] = ()  # what an operator must know of the picture itself: gaps, clock, container
    cursor: str = ""
    crash: Crash | None = None  # the last
    crashes: tuple[Crash, ...] = ()

    @property
    def judgement(self) -> State:
        """How good that is; unknown while it goes on, and where nothing was heard when the time was up."""
        return State.UNKNOWN if self.is_unheard else _JUDGED.get(self.state, State.UNKNOWN)

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

    @property
    def still_s(self) -> float:
        """Seconds since the engine told something new, or its processes moved."""
        return self.movement.still_s(self.at, self.last_line_at or self.since)

    @property
    def slow_words(self) -> str:
        """What is said of a start that is silent but moves; "" for any other."""
        is_going_on = self.state is LaunchState.STARTING and not self.waiting_for
        if not is_going_on or self.quiet_s < _SLOW_AFTER_S or self.still_s > _SLOW_AFTER_S / 2:
            return ""
        return f"no line for {self.quiet_s:.0f} s, but it moves ({self.movement.words})"

    @property
    def stalled_words(self) -> str:
        """What is said of a start in which nothing moves."""
        alive = f", its process (pid {self.main_pid}) is alive" if self.main_pid else ""
        return f"no news for {self.quiet_s:.0f} s{alive}; the last was {self.last_line[:160]!r}"

    @property
    def last_seen_words(self) -> str:
        """What was seen last, of everything that is watched."""
        phase = self.phase.title if self.phase else "nothing of the engine"
        unit = f"{self.active_state} ({self.sub_state})" if self.active_state else "not seen"
        health = self.health_status_code if self.health_status_code is not None else "closed"
        answer = f", asked for an answer: {words}" if (words := answer_words(self.answer)) else ""
        moves = f", {self.slow_words}" if self.slow_words else ""
        return f"last seen: {phase}, unit {unit}, /health {health}{answer}{moves}, last line {self.last_line[:160]!r}"


def status_changes(before: LaunchStatus, after: LaunchStatus) -> tuple[LaunchChange, ...]:
    """What differs between two statuses, in the order an operator reads."""
    pairs = (
        ("exit", before.ended_pid, after.ended_pid),
        ("unit", (before.active_state, before.sub_state), (after.active_state, after.sub_state)),
        ("invocation", before.invocation_id, after.invocation_id),
        ("restarts", before.n_restarts, after.n_restarts),
        ("health", before.health_status_code, after.health_status_code),
        ("answer", before.answer, after.answer),
        ("guard", before.waiting_for, after.waiting_for),
        ("phase", before.phase, after.phase),
        ("note", before.notes, after.notes),
        ("crash", before.crash, after.crash),
        ("state", before.state, after.state),
    )
    changed = [(what, _words(what, after)) for what, old, new in pairs if old != new and (what != "exit" or new)]
    return tuple(LaunchChange(at=after.at, what=what, text=text) for what, text in changed if text)


def answer_words(answer: AnswerSeen | None) -> str:
    """What came of asking for one real answer, for a reader; "" where none was asked for."""
    if answer is None or answer.kind == "none":
        return ""
    if answer.problem:
        return answer.problem
    if answer.is_ours is False:
        return "another program than the unit's answers there"
    return f"{answer.model}: a {answer.kind} in {answer.latency_ms or 0:.0f} ms"


def _words(what: str, status: LaunchStatus) -> str:
    title = status.phase.title if status.phase else ""
    return {
        "exit": f"the main process (pid {status.ended_pid}) has ended",
        "unit": f"{status.active_state} ({status.sub_state})",
        "invocation": status.invocation_id,
        "restarts": str(status.n_restarts),
        "health": "closed" if status.health_status_code is None else str(status.health_status_code),
        "answer": answer_words(status.answer),
        "guard": status.waiting_words or "the GPU guard waits no longer",
        "phase": title if status.percent is None else f"{title} {status.percent} %",
        "note": status.notes[-1] if status.notes else "",
        "crash": status.crash.words if status.crash else "",
        "state": f"{status.state}: {status.reason}".rstrip(": "),
    }[what]
