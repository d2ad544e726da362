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
from opslib.domain.launch_eta import Durations
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
from opslib.domain.launch_phases import IMPORTING, SERVING, STOPPING, WAITING, launch_phase
from opslib.domain.launch_picture import LaunchPicture
from opslib.domain.launch_signs import Sign, sign_of, unit_sign
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
_BEGINS_WITHIN_S = 60  # systemd begins a start that was asked for at once; one that a reboot took away never


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
        self._now = LaunchPicture(started_at, before=before, ends_at=ends_at, earlier=earlier, budget=budget)
        self._present = present  # the start that ran when the watch began: older ones' lines say nothing
        self._unit_name = unit_name(unit) if unit else ""
        self._stall_s = stall_s
        self._clock = HostClock()

    @property
    def status(self) -> LaunchStatus:
        """All that is known."""
        return self._now.status

    @property
    def is_over(self) -> bool:
        """Whether nothing more is waited for."""
        return self._now.is_over

    def feed(self, event: LaunchEvent) -> tuple[LaunchChange, ...]:
        """Takes one event in and says what changed by it; once it is over, only how a crash came about is added."""
        if self.is_over:
            return self._last_word(event)
        before = self.status
        if isinstance(event, HostHello | TickSeen):
            self._mind_clock(event)
        self._now.set(at=max(self._clock.corrected(event.at), self.status.at))
        match event:
            case LinkLost():
                is_new = before.state is not LaunchState.UNREACHABLE
                self._now.set(n_links_lost=before.n_links_lost + is_new)
                self._now.become(LaunchState.UNREACHABLE, event.reason or "the host does not answer")
            case DeadlineReached():
                self._now.time_out()
            case Aborted():
                self._now.become(LaunchState.ABORTED, event.reason or ABORT_WORDS)
            case ProblemSeen() | JournalGap():
                self._now.note(event.text)
            case _:
                self._heard(event)
        self._now.refresh()
        return status_changes(before, self.status)

    def _heard(
        self, event: HostHello | JournalSeen | HealthSeen | AnswerSeen | UnitSeen | ExitSeen | GpuSeen | TickSeen
    ) -> None:
        if self.status.state is LaunchState.UNREACHABLE:
            unheard_s = (self.status.at - self.status.last_heard_at).total_seconds()
            self._now.set(unheard_s=self.status.unheard_s + unheard_s)
            self._now.become(LaunchState.STARTING, "")
        self._now.set(last_heard_at=self.status.at)
        match event:
            case HostHello():
                self._hello(event)
            case JournalSeen():
                self._journal(event.entry)
            case HealthSeen():
                self._now.set(health_status_code=event.status_code, health_latency_ms=event.latency_ms)
                self._now.set(port=event.port or self.status.port)
                self._now.was_closed |= event.status_code != _HTTP_OK
            case AnswerSeen():
                self._now.set(answer=event)
            case UnitSeen():
                self._unit(event.status)
            case ExitSeen():
                self._now.set(ended_pid=event.pid)
            case GpuSeen():
                movement = self.status.movement.with_gpus(self.status.at, event.gpus, event.utilization)
                self._now.set(gpus=event.gpus, movement=movement)
            case TickSeen():
                self._tick(event)
        self._now.check_ready()

    @property
    def wants_last_word(self) -> bool:
        """Whether systemd's word on how the last start crashed is still to come.

        The crash was noticed otherwise; the journal tells of it up to a quarter of a second later.
        """
        return self.status.state is LaunchState.CRASHED and self._now.lacks_exit

    def _last_word(self, event: LaunchEvent) -> tuple[LaunchChange, ...]:
        before = self.status
        if isinstance(event, JournalSeen) and self.wants_last_word:
            sign = sign_of(event.entry, parse_log_line(event.entry.message))
            self._now.complete(event.entry.invocation_id, sign.exit_status, self._moment_of(event.entry))
        return status_changes(before, self.status)

    # -- clocks and boots

    def _mind_clock(self, event: HostHello | TickSeen) -> None:
        is_same_boot = isinstance(event, TickSeen) or event.boot_id == self.status.boot_id
        if step_s := self._clock.look(event.at, event.monotonic_s, is_same_boot=is_same_boot):
            self._now.note(f"the host's clock was set by {step_s:+.0f} s; times are told as if it had not been")
            self._now.set(at=self._clock.corrected(event.at))

    def _hello(self, event: HostHello) -> None:
        known = self.status.boot_id
        self._now.set(boot_id=event.boot_id or known)
        if known and event.boot_id and event.boot_id != known:
            self._now.n_restarts = None
            self._now.crashed("boot", "the host was booted anew: its boot id changed")

    # -- the journal

    def _journal(self, entry: JournalEntry) -> None:
        self._now.set(cursor=entry.cursor or self.status.cursor)
        line = parse_log_line(entry.message)
        sign = sign_of(entry, line)
        if sign.kind == "dropped":
            if sign.n:
                self._now.set(n_dropped=self.status.n_dropped + sign.n)
                self._now.note(f"the journal is incomplete: {sign.text}")
            return
        if self._unit_name and entry.unit and entry.unit != self._unit_name:
            return
        if sign.kind == "start_limit":  # carries the old invocation
            self._now.become(LaunchState.FAILED, "systemd gave up: start request repeated too quickly")
        if self._present and not self.status.invocation_id and entry.invocation_id != self._present:
            return
        if entry.invocation_id in self._now.old_invocations or sign.kind == "waiting":
            self._now.complete(entry.invocation_id, sign.exit_status, self._moment_of(entry))
            return
        if self.status.invocation_id and entry.invocation_id not in {"", self.status.invocation_id}:
            if sign.kind != "started" and entry.identifier == "systemd":
                return
            self._now.next_start(entry.invocation_id)
        at = self._moment_of(entry)
        self._now.set(
            last_line=line.text.strip() or self.status.last_line, last_line_at=max(at, self.status.last_line_at or at)
        )
        if self.status.state is LaunchState.STALLED:
            self._now.become(LaunchState.STARTING, "")
        self._now.adopt(entry.invocation_id, at)
        self._take(sign, entry, line, at)

    def _take(self, sign: Sign, entry: JournalEntry, line: LogLine, at: datetime) -> None:
        if entry.identifier != "systemd" and (guard := parse_guard_line(line.text)):
            held_by = guard.held_by or self.status.waiting_for or "others"
            self._now.set(waiting_for=held_by if guard.is_waiting else "")
            self._now.track.move(IMPORTING if guard.is_free else WAITING, at)
        elif sign.kind == "stopping":
            self._now.is_stop_asked = True
            self._now.track.move(STOPPING, at)
        elif sign.kind == "started":
            self._now.track.move(IMPORTING, at)
        elif sign.kind in {"exited", "ended", "death"}:
            if not self._now.is_stop_asked:
                self._now.crashed("journal", sign.text, died_at=at, exit_status=sign.exit_status)
        elif sign.kind == "line" and entry.identifier != "systemd":
            self._now.track.feed(line, at)
            self._now.is_serving |= self._is_past(SERVING)

    def _moment_of(self, entry: JournalEntry) -> datetime:
        """When it was logged, on the corrected clock, and never later than it was heard."""
        return min(self._clock.corrected(entry.realtime_at), self.status.at) if entry.realtime_at else self.status.at

    # -- systemd

    def _unit(self, unit: UnitStatus) -> None:
        known, n_restarts = self.status.invocation_id, self._now.n_restarts
        self._now.set(
            active_state=unit.active_state, sub_state=unit.sub_state, result=unit.result, main_pid=unit.main_pid
        )
        if unit.main_pid != self.status.ended_pid:
            self._now.set(ended_pid=0)
        sign = unit_sign(unit, known=known, n_restarts=n_restarts, is_stop_asked=self._now.is_stop_asked)
        if sign.kind == "gone":
            self._now.become(LaunchState.FAILED, sign.text)
        elif sign.kind == "orphaned":
            self._now.note(sign.text)
        elif unit.invocation_id in self._now.old_invocations:
            self._old_start(unit)
        else:
            self._now.n_restarts = unit.n_restarts
            self._now.set(n_restarts=unit.n_restarts)
            self._present_start(unit, sign)

    def _old_start(self, unit: UnitStatus) -> None:
        """The start before is still what systemd tells of: of note only where it is the last one."""
        if unit.result == "start-limit-hit" or (self.status.crash and unit.active_state in {"failed", "inactive"}):
            self._now.failed(unit)
        elif self.status.crash and unit.sub_state.startswith("auto-restart"):
            self._now.restarting(unit)

    def _present_start(self, unit: UnitStatus, sign: Sign) -> None:
        match sign.kind:
            case "n_restarts" | "invocation_id":
                if not self._now.has_crashed:
                    self._now.crashed(sign.kind, sign.text, unit=unit)
                self._now.next_start(unit.invocation_id)
            case "sub_state":
                self._auto_restart(unit)
            case "failed":
                self._now.failed(unit)
            case "result":
                self._now.crashed("result", sign.text, unit=unit)
            case "inactive":
                self._now.become(LaunchState.FAILED, sign.text)
            case _:
                self._now.adopt(unit.invocation_id, self.status.at)

    def _auto_restart(self, unit: UnitStatus) -> None:
        if (self.status.invocation_id or self._now.old_invocations) and not self._now.has_crashed:
            self._now.crashed("sub_state", f"systemd waits to restart it (result {unit.result})", unit=unit)
        if not self.is_over:
            self._now.restarting(unit)

    def _tick(self, event: TickSeen) -> None:
        if self._now.lacks_start and self.status.elapsed_s > _BEGINS_WITHIN_S:
            words = f"systemd says inactive, and did not begin it within {_BEGINS_WITHIN_S} s"
            self._now.become(LaunchState.FAILED, f"{words}: was the host booted anew?")
        movement = self.status.movement.with_usage(self.status.at, event.cpu_s, event.read_bytes)
        self._now.set(movement=movement, health_latency_ms=event.health_ms)
        status = self.status
        is_waiting = status.state is LaunchState.STARTING and not status.waiting_for
        if is_waiting and status.still_s > self._stall_s:
            self._now.become(LaunchState.STALLED, f"{status.stalled_words}; {status.last_seen_words}")
        elif status.state is LaunchState.STALLED and status.still_s <= self._stall_s:
            self._now.become(LaunchState.STARTING, "")

    def _is_past(self, phase_id: str) -> bool:
        span = self._now.track.current
        return span is not None and launch_phase(span.id).order >= launch_phase(phase_id).order
