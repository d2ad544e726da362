"""How a launch is going: a pure tracker that takes what was seen, with its time, and says what it means.

"active (running)" is not ready: a unit reads so while its engine loads, and again eight seconds after a crash.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from opslib.domain.engine_log import LogLine, parse_log_line
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.restart_budget import RestartBudget
from opslib.domain.facts.systemd import UnitStatus, unit_name
from opslib.domain.guard_log import parse_guard_line
from opslib.domain.launch_clock import HostClock
from opslib.domain.launch_eta import Durations, eta_s
from opslib.domain.launch_events import (
    Aborted,
    AnswerSeen,
    DeadlineReached,
    ExitSeen,
    GpuSeen,
    HealthSeen,
    HostHello,
    JournalGap,
    JournalSeen,
    LaunchEvent,
    LinkLost,
    ProblemSeen,
    TickSeen,
    UnitSeen,
)
from opslib.domain.launch_phases import FIRST_TOKEN, IMPORTING, SERVING, STOPPING, WAITING, PhaseTrack, launch_phase
from opslib.domain.launch_signs import Sign, failure_words, sign_of, unit_sign
from opslib.domain.launch_status import (
    ABORT_WORDS,
    FINAL,
    Crash,
    LaunchChange,
    LaunchState,
    LaunchStatus,
    status_changes,
)

__all__ = [
    "Crash",
    "DeadlineReached",
    "GpuSeen",
    "HealthSeen",
    "JournalSeen",
    "LaunchChange",
    "LaunchEvent",
    "LaunchState",
    "LaunchStatus",
    "LaunchTracker",
    "LinkLost",
    "TickSeen",
    "UnitSeen",
]

_HTTP_OK = 200


class LaunchTracker:
    """Takes events in order and keeps `status`; holds no clock and does no I/O.

    `before` is the unit's status before the start was asked for: only another invocation than that one counts. The
    watch is over with a state of `ends_at`; where a crash is none of them, the starts that systemd makes are followed.
    """

    def __init__(
        self,
        started_at: datetime,
        *,
        before: UnitStatus | None = None,
        present: str = "",
        stall_s: float = 900.0,
        unit: str = "",
        ends_at: Collection[LaunchState] = FINAL,
        earlier: Sequence[Durations] = (),
        budget: RestartBudget | None = None,
    ) -> None:
        self._old_invocations = {before.invocation_id} - {""} if before else set()
        self._present = present  # the start that ran when the watch began: older ones' lines say nothing
        self._unit_name = unit_name(unit) if unit else ""
        self._stall_s = stall_s
        self._ends_at = frozenset(ends_at)
        self._earlier = earlier
        self._budget = budget
        self._starts: tuple[datetime, ...] = ()
        self._n_restarts: int | None = None
        self._clock = HostClock()
        self._is_adopted_midway = before is None  # somebody else started it: it may serve already
        self._begin_start()
        self.status = LaunchStatus(since=started_at, at=started_at, last_heard_at=started_at)

    def _begin_start(self) -> None:
        self._track = PhaseTrack()
        self._was_closed = False  # /health was seen closed during this invocation
        self._is_stop_asked = False
        self._is_serving = self._is_adopted_midway

    @property
    def is_over(self) -> bool:
        """Whether nothing more is waited for."""
        return self.status.state in self._ends_at

    def feed(self, event: LaunchEvent) -> tuple[LaunchChange, ...]:
        """Takes one event in and says what changed by it; once it is over nothing changes any more."""
        if self.is_over:
            return ()
        before = self.status
        if isinstance(event, HostHello | TickSeen):
            self._mind_clock(event)
        self._set(at=max(self._clock.corrected(event.at), self.status.at))
        match event:
            case LinkLost():
                is_new = before.state is not LaunchState.UNREACHABLE
                self._set(n_links_lost=before.n_links_lost + is_new)
                self._become(LaunchState.UNREACHABLE, event.reason or "the host does not answer")
            case DeadlineReached():
                is_stalled = before.state is LaunchState.STALLED
                self._become(
                    LaunchState.TIMED_OUT, self.status.stalled_words if is_stalled else self.status.last_seen_words
                )
            case Aborted():
                self._become(LaunchState.ABORTED, event.reason or ABORT_WORDS)
            case ProblemSeen() | JournalGap():
                self._note(event.text)
            case _:
                self._heard(event)
        self._set_picture()
        return status_changes(before, self.status)

    def _heard(
        self, event: HostHello | JournalSeen | HealthSeen | AnswerSeen | UnitSeen | ExitSeen | GpuSeen | TickSeen
    ) -> None:
        if self.status.state is LaunchState.UNREACHABLE:
            unheard_s = (self.status.at - self.status.last_heard_at).total_seconds()
            self._set(unheard_s=self.status.unheard_s + unheard_s)
            self._become(LaunchState.STARTING, "")
        self._set(last_heard_at=self.status.at)
        match event:
            case HostHello():
                self._hello(event)
            case JournalSeen():
                self._journal(event.entry)
            case HealthSeen():
                self._set(health_status_code=event.status_code, health_latency_ms=event.latency_ms)
                self._set(port=event.port or self.status.port)
                self._was_closed |= event.status_code != _HTTP_OK
            case AnswerSeen():
                self._set(answer=event)
            case UnitSeen():
                self._unit(event.status)
            case ExitSeen():
                self._set(ended_pid=event.pid)
            case GpuSeen():
                movement = self.status.movement.with_gpus(self.status.at, event.gpus, event.utilization)
                self._set(gpus=event.gpus, movement=movement)
            case TickSeen():
                self._tick(event)
        self._check_ready()

    # -- clocks and boots

    def _mind_clock(self, event: HostHello | TickSeen) -> None:
        is_same_boot = isinstance(event, TickSeen) or event.boot_id == self.status.boot_id
        if step_s := self._clock.look(event.at, event.monotonic_s, is_same_boot=is_same_boot):
            self._note(f"the host's clock was set by {step_s:+.0f} s; times are told as if it had not been")
            self._set(at=self._clock.corrected(event.at))

    def _hello(self, event: HostHello) -> None:
        known = self.status.boot_id
        self._set(boot_id=event.boot_id or known)
        if known and event.boot_id and event.boot_id != known:
            self._n_restarts = None
            self._crashed("boot", "the host was booted anew: its boot id changed")

    # -- the journal

    def _journal(self, entry: JournalEntry) -> None:
        self._set(cursor=entry.cursor or self.status.cursor)
        line = parse_log_line(entry.message)
        sign = sign_of(entry, line)
        if sign.kind == "dropped":
            if sign.n:
                self._set(n_dropped=self.status.n_dropped + sign.n)
                self._note(f"the journal is incomplete: {sign.text}")
            return
        if self._unit_name and entry.unit and entry.unit != self._unit_name:
            return
        if sign.kind == "start_limit":  # carries the old invocation
            self._become(LaunchState.FAILED, "systemd gave up: start request repeated too quickly")
        if self._present and not self.status.invocation_id and entry.invocation_id != self._present:
            return
        if entry.invocation_id in self._old_invocations or sign.kind == "waiting":
            return
        if self.status.invocation_id and entry.invocation_id not in {"", self.status.invocation_id}:
            if sign.kind != "started" and entry.identifier == "systemd":
                return
            self._next_start(entry.invocation_id)
        at = self._moment_of(entry)
        self._set(
            last_line=line.text.strip() or self.status.last_line, last_line_at=max(at, self.status.last_line_at or at)
        )
        if self.status.state is LaunchState.STALLED:
            self._become(LaunchState.STARTING, "")
        self._adopt(entry.invocation_id, at)
        self._take(sign, entry, line, at)

    def _take(self, sign: Sign, entry: JournalEntry, line: LogLine, at: datetime) -> None:
        if entry.identifier != "systemd" and (guard := parse_guard_line(line.text)):
            held_by = guard.held_by or self.status.waiting_for or "others"
            self._set(waiting_for=held_by if guard.is_waiting else "")
            self._track.move(IMPORTING if guard.is_free else WAITING, at)
        elif sign.kind == "stopping":
            self._is_stop_asked = True
            self._track.move(STOPPING, at)
        elif sign.kind == "started":
            self._track.move(IMPORTING, at)
        elif sign.kind in {"exited", "ended", "death"}:
            if not self._is_stop_asked:
                self._crashed("journal", sign.text, died_at=at, exit_status=sign.exit_status)
        elif sign.kind == "line" and entry.identifier != "systemd":
            self._track.feed(line, at)
            self._is_serving |= self._is_past(SERVING)

    def _moment_of(self, entry: JournalEntry) -> datetime:
        """When it was logged, on the corrected clock, and never later than it was heard."""
        return min(self._clock.corrected(entry.realtime_at), self.status.at) if entry.realtime_at else self.status.at

    # -- systemd

    def _unit(self, unit: UnitStatus) -> None:
        known, n_restarts = self.status.invocation_id, self._n_restarts
        self._set(active_state=unit.active_state, sub_state=unit.sub_state, result=unit.result, main_pid=unit.main_pid)
        if unit.main_pid != self.status.ended_pid:
            self._set(ended_pid=0)
        sign = unit_sign(unit, known=known, n_restarts=n_restarts, is_stop_asked=self._is_stop_asked)
        if sign.kind == "gone":
            self._become(LaunchState.FAILED, sign.text)
        elif sign.kind == "orphaned":
            self._note(sign.text)
        elif unit.invocation_id in self._old_invocations:
            self._old_start(unit)
        else:
            self._n_restarts = unit.n_restarts
            self._set(n_restarts=unit.n_restarts)
            self._present_start(unit, sign)

    def _old_start(self, unit: UnitStatus) -> None:
        """The start before is still what systemd tells of: of note only where it is the last one."""
        if unit.result == "start-limit-hit" or (self.status.crash and unit.active_state in {"failed", "inactive"}):
            self._failed(unit)
        elif self.status.crash and unit.sub_state.startswith("auto-restart"):
            self._restarting(unit)

    def _present_start(self, unit: UnitStatus, sign: Sign) -> None:
        match sign.kind:
            case "n_restarts" | "invocation_id":
                if not self._has_crashed:
                    self._crashed(sign.kind, sign.text, unit=unit)
                self._next_start(unit.invocation_id)
            case "sub_state":
                self._auto_restart(unit)
            case "failed":
                self._failed(unit)
            case "result":
                self._crashed("result", sign.text, unit=unit)
            case "inactive":
                self._become(LaunchState.FAILED, sign.text)
            case _:
                self._adopt(unit.invocation_id, self.status.at)

    @property
    def _has_crashed(self) -> bool:
        """Whether the crash of the present start is known."""
        return any(crash.invocation_id == self.status.invocation_id for crash in self.status.crashes)

    def _auto_restart(self, unit: UnitStatus) -> None:
        if (self.status.invocation_id or self._old_invocations) and not self._has_crashed:
            self._crashed("sub_state", f"systemd waits to restart it (result {unit.result})", unit=unit)
        if not self.is_over:
            self._restarting(unit)

    def _restarting(self, unit: UnitStatus) -> None:
        self._become(LaunchState.RESTARTING, f"systemd waits to restart it (result {unit.result})")

    def _failed(self, unit: UnitStatus) -> None:
        how = failure_words(unit)
        crash = self._crash("active_state", how, died_at=unit.exec_main_exit_at, exit_status=unit.exit_words)
        self._set(crash=self.status.crash or crash)
        self._become(LaunchState.FAILED, how)

    # -- what follows

    def _adopt(self, invocation_id: str, at: datetime) -> None:
        if invocation_id and not self.status.invocation_id:
            self._set(invocation_id=invocation_id, health_status_code=None)
            self._starts = (*self._starts, at)
            if self.status.state in {LaunchState.RESTARTING, LaunchState.CRASHED}:
                self._become(LaunchState.STARTING, "")

    def _next_start(self, invocation_id: str) -> None:
        """Systemd has started it again: what is known of the start before counts no more."""
        known = self.status.invocation_id
        if self.is_over or not invocation_id or invocation_id == known:
            return
        if not self._has_crashed:
            self._crashed("invocation_id", f"InvocationID changed from {known} to {invocation_id}")
        if self.is_over:
            return
        self._old_invocations |= {known}
        self._n_restarts = None  # this start is one of them: counted from the next answer on
        self._is_adopted_midway = False
        self._begin_start()
        none_known = {"phase": None, "percent": None, "answer": None, "invocation_id": "", "waiting_for": ""}
        self._set(**none_known, health_status_code=None)
        self._adopt(invocation_id, self.status.at)

    def _crashed(
        self,
        noticed_by: str,
        text: str,
        *,
        died_at: datetime | None = None,
        unit: UnitStatus | None = None,
        exit_status: str = "",
    ) -> None:
        known = next((crash for crash in self.status.crashes if crash.invocation_id == self.status.invocation_id), None)
        if known is None:
            died_at = died_at or (unit.exec_main_exit_at if unit else None)
            crash = self._crash(noticed_by, text, died_at=died_at, exit_status=exit_status)
            self._set(crash=crash, crashes=(*self.status.crashes, crash))
            self._track.close(died_at or self.status.at)
        elif exit_status and not known.exit_status:
            crash = known.model_copy(update={"exit_status": exit_status})
            self._set(crash=crash, crashes=(*self.status.crashes[:-1], crash))
        self._become(LaunchState.CRASHED, self.status.crash.text if self.status.crash else text)

    def _crash(self, noticed_by: str, text: str, *, died_at: datetime | None, exit_status: str) -> Crash:
        return Crash(
            invocation_id=self.status.invocation_id,
            noticed_by=noticed_by,
            text=text,
            seen_at=self.status.at,
            died_at=died_at,
            exit_status=exit_status,
            phase=self._track.current.title if self._track.current else "",
        )

    def _check_ready(self) -> None:
        """Ready: `/health` answers 200, the unit runs, and the engine of *this* start gave one real answer.

        Another server on the port answers 200 from the start. Where no engine is recognised, ours was closed first, or
        its log says that it serves.
        """
        status, answer = self.status, self.status.answer
        is_running = status.active_state == "active" and bool(status.invocation_id)
        if status.health_status_code != _HTTP_OK or not is_running or status.state in FINAL:
            return
        if answer is None or answer.pid != status.main_pid or answer.problem or answer.is_ours is False:
            return
        if answer.is_ours is None and not (self._is_serving or self._was_closed):
            return
        for phase_id in (SERVING, FIRST_TOKEN) if answer.kind != "none" else (SERVING,):
            self._track.move(phase_id, status.at)  # the journal's line may come later than the answer
        self._become(LaunchState.READY, f"/health answers 200 after {status.elapsed_s:.0f} s")

    def _tick(self, event: TickSeen) -> None:
        movement = self.status.movement.with_usage(self.status.at, event.cpu_s, event.read_bytes)
        self._set(movement=movement, health_latency_ms=event.health_ms)
        status = self.status
        is_waiting = status.state is LaunchState.STARTING and not status.waiting_for
        if is_waiting and status.still_s > self._stall_s:
            self._become(LaunchState.STALLED, f"{status.stalled_words}; {status.last_seen_words}")
        elif status.state is LaunchState.STALLED and status.still_s <= self._stall_s:
            self._become(LaunchState.STARTING, "")

    def _is_past(self, phase_id: str) -> bool:
        span = self._track.current
        return span is not None and launch_phase(span.id).order >= launch_phase(phase_id).order

    def _set_picture(self) -> None:
        """Phase, progress and estimate, as the phases' track has them."""
        span, status = self._track.current, self.status
        phase = launch_phase(span.id).model_copy(update={"percent": span.percent}) if span else None
        is_going_on = status.state in {LaunchState.STARTING, LaunchState.STALLED, LaunchState.UNREACHABLE}
        estimate = eta_s(self._track.spans, self._earlier, status.at) if self._earlier and is_going_on else None
        values = {"phase": phase, "percent": span.percent if span else None, "phases": self._track.spans}
        words = self._budget.words(self._starts, status.at) if self._budget and status.crashes else ""
        self._set(**values, eta_s=estimate, budget_words=words)

    def _note(self, text: str) -> None:
        if text not in self.status.notes:
            self._set(notes=(*self.status.notes, text)[-20:])

    def _become(self, state: LaunchState, reason: str) -> None:
        self._set(state=state, reason=reason)

    def _set(self, **values: object) -> None:
        self.status = self.status.model_copy(update=values)
