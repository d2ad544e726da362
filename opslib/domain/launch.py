"""How a launch is going: a pure tracker that takes what was seen, with its time, and says what it means.

"active (running)" is not ready: a unit reads so while its engine loads, and again eight seconds after a crash.
"""

import re
from datetime import datetime

from opslib.domain.engine_log import list_phases, parse_log_line, phase_of
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.guard_log import parse_guard_line
from opslib.domain.launch_events import (
    Crash,
    DeadlineReached,
    GpuSeen,
    HealthSeen,
    JournalSeen,
    LaunchChange,
    LaunchEvent,
    LaunchState,
    LaunchStatus,
    LinkLost,
    TickSeen,
    UnitSeen,
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

_DEATHS = re.compile(
    r"WorkerProc hit an exception|WorkerProc failed to start|EngineCore failed to start"
    r"|Engine core initialization failed"
    r"|EngineCore (?:hit an exception|encountered a fatal error)|Engine process failed to start|died unexpectedly"
)
_MAIN_EXITED = re.compile(
    r"(?:[Mm]ain|Control) process exited, code=(?P<code>\w+),? status=(?P<status>\d+)(?:/(?P<word>\w+))?"
)
_SCHEDULED = re.compile(r"Scheduled restart job, restart counter is at (?P<n>\d+)")
_RESULT = re.compile(r"Failed with result '(?P<result>[\w-]+)'")
_START_LIMIT = re.compile(r"[Ss]tart request repeated too quickly")
# Said once a minute by processes that wait for others: no news.
_WAITING = re.compile(r"No available shared memory broadcast block found")
_STOPPING = re.compile(r"^Stopping |stop-sigterm")
_SERVING = "serving"
_HTTP_OK = 200


class LaunchTracker:
    """Takes events in order and keeps `status`; holds no clock and does no I/O.

    `before` is the unit's status before the start was asked for: only another invocation than that one counts.
    """

    def __init__(self, started_at: datetime, *, before: UnitStatus | None = None, stall_s: float = 900.0) -> None:
        self._old_invocation = before.invocation_id if before else ""
        self._n_restarts: int | None = None
        self._stall_s = stall_s
        self._was_closed = False  # /health was seen closed during this invocation
        self._is_stop_asked = False
        self._is_serving = before is None  # watching a unit that somebody else started: it may serve already
        self.status = LaunchStatus(since=started_at, at=started_at, last_heard_at=started_at)

    def feed(self, event: LaunchEvent) -> tuple[LaunchChange, ...]:
        """Takes one event in and says what changed by it; after a final state nothing changes any more."""
        if self.status.state.is_final:
            return ()
        before = self.status
        self._set(at=max(event.at, before.at))
        match event:
            case LinkLost():
                is_new = before.state is not LaunchState.UNREACHABLE
                self._set(n_links_lost=before.n_links_lost + is_new)
                self._become(LaunchState.UNREACHABLE, event.reason or "the host does not answer")
            case DeadlineReached():
                is_stalled = before.state is LaunchState.STALLED
                self._become(LaunchState.TIMED_OUT, self._stalled_words() if is_stalled else self._last_seen())
            case _:
                self._heard(event)
        return status_changes(before, self.status)

    def _heard(self, event: JournalSeen | HealthSeen | UnitSeen | GpuSeen | TickSeen) -> None:
        if self.status.state is LaunchState.UNREACHABLE:
            unheard_s = (self.status.at - self.status.last_heard_at).total_seconds()
            self._set(unheard_s=self.status.unheard_s + unheard_s)
            self._become(LaunchState.STARTING, "")
        self._set(last_heard_at=self.status.at)
        match event:
            case JournalSeen():
                self._journal(event.entry)
            case HealthSeen():
                self._set(health_status_code=event.status_code)
                self._was_closed |= event.status_code != _HTTP_OK
            case UnitSeen():
                self._unit(event.status)
            case GpuSeen():
                self._set(gpus=event.gpus)
            case TickSeen():
                self._check_stall()
        self._check_ready()

    # -- the journal

    def _journal(self, entry: JournalEntry) -> None:
        self._set(cursor=entry.cursor or self.status.cursor)
        if entry.identifier == "systemd" and _START_LIMIT.search(entry.message):  # carries the old invocation
            self._become(LaunchState.FAILED, "systemd gave up: start request repeated too quickly")
        if self._is_old(entry.invocation_id):
            return
        line = parse_log_line(entry.message)
        if _WAITING.search(line.text):
            return
        self._set(last_line=line.text.strip() or self.status.last_line)
        self._set(last_line_at=entry.realtime_at or self.status.at)
        if self.status.state is LaunchState.STALLED:
            self._become(LaunchState.STARTING, "")
        if guard := parse_guard_line(line.text):
            held_by = guard.held_by or self.status.waiting_for or "others"
            self._set(waiting_for=held_by if guard.is_waiting else "")
        self._adopt(entry.invocation_id)
        if entry.identifier == "systemd":
            self._systemd_line(entry)
        elif not self._is_stop_asked and _DEATHS.search(line.text):
            self._crashed("journal", line.text, entry)
        else:
            self._progress(line.text)

    def _systemd_line(self, entry: JournalEntry) -> None:
        text = entry.message
        if _STOPPING.search(text):
            self._is_stop_asked = True
        elif self._is_stop_asked:
            return
        elif match := _MAIN_EXITED.search(text):
            how = f"{match['code']}, status={match['status']}" + (f"/{match['word']}" if match["word"] else "")
            self._crashed("journal", text, entry, exit_status=how)
        elif _RESULT.search(text) or _SCHEDULED.search(text):
            self._crashed("journal", text, entry)

    def _progress(self, text: str) -> None:
        phase = phase_of(text)
        known = self.status.phase
        if phase is None or (known and phase.order < known.order):
            return
        self._is_serving |= phase.id == _SERVING
        if known and known.id == phase.id:  # several ranks draw their own bars, and other lines draw none
            percent = max(phase.percent or 0, known.percent or 0) or phase.percent
            phase = phase.model_copy(update={"percent": percent})
        self._set(phase=phase, percent=phase.percent)

    # -- systemd

    def _unit(self, unit: UnitStatus) -> None:
        known, n_restarts = self.status.invocation_id, self._n_restarts
        self._set(active_state=unit.active_state, sub_state=unit.sub_state, result=unit.result, main_pid=unit.main_pid)
        if not unit.is_installed:
            self._become(LaunchState.FAILED, f"systemd knows no unit {unit.unit}".rstrip())
            return
        if self._is_old(unit.invocation_id):
            if unit.result == "start-limit-hit":
                self._failed(unit)
            return
        self._n_restarts = unit.n_restarts
        self._set(n_restarts=unit.n_restarts)
        if n_restarts is not None and unit.n_restarts > n_restarts:
            self._crashed("n_restarts", f"NRestarts went from {n_restarts} to {unit.n_restarts}", status=unit)
        elif known and unit.invocation_id and unit.invocation_id != known:
            self._crashed("invocation_id", f"InvocationID changed from {known} to {unit.invocation_id}", status=unit)
        elif unit.sub_state.startswith("auto-restart"):
            self._auto_restart(unit)
        elif unit.active_state == "failed":
            self._failed(unit)
        elif unit.active_state == "inactive" and known:
            self._become(LaunchState.FAILED, f"the unit is inactive: {unit.exit_words or 'it ended'}")
        else:
            self._adopt(unit.invocation_id)

    def _auto_restart(self, unit: UnitStatus) -> None:
        if self.status.invocation_id or self._old_invocation:
            self._crashed("sub_state", f"systemd waits to restart it (result {unit.result})", status=unit)
        else:
            self._become(LaunchState.RESTARTING, f"systemd waits to restart it (result {unit.result})")

    def _failed(self, unit: UnitStatus) -> None:
        how = f"the unit failed (result {unit.result}" + (f", {unit.exit_words})" if unit.exit_words else ")")
        crash = self._crash("active_state", how, died_at=unit.exec_main_exit_at, exit_status=unit.exit_words)
        self._set(crash=self.status.crash or crash)
        self._become(LaunchState.FAILED, how)

    # -- what follows

    def _is_old(self, invocation_id: str) -> bool:
        return bool(invocation_id) and invocation_id == self._old_invocation

    def _adopt(self, invocation_id: str) -> None:
        if invocation_id and not self.status.invocation_id:
            self._set(invocation_id=invocation_id, health_status_code=None)
            if self.status.state is LaunchState.RESTARTING:
                self._become(LaunchState.STARTING, "")

    def _crashed(
        self,
        noticed_by: str,
        text: str,
        entry: JournalEntry | None = None,
        *,
        status: UnitStatus | None = None,
        exit_status: str = "",
    ) -> None:
        died_at = entry.realtime_at if entry else status.exec_main_exit_at if status else None
        self._set(crash=self._crash(noticed_by, text, died_at=died_at, exit_status=exit_status))
        self._become(LaunchState.CRASHED, text)

    def _crash(self, noticed_by: str, text: str, *, died_at: datetime | None, exit_status: str) -> Crash:
        return Crash(
            invocation_id=self.status.invocation_id,
            noticed_by=noticed_by,
            text=text,
            seen_at=self.status.at,
            died_at=died_at,
            exit_status=exit_status,
        )

    def _check_ready(self) -> None:
        """Ready: `/health` answers 200, the unit runs, and it is *this* unit's server that answers.

        Another server on the port answers 200 from the start; ours was closed first, or its log says that it serves.
        """
        status = self.status
        is_running = status.active_state == "active" and bool(status.invocation_id)
        is_ours = self._is_serving or self._was_closed
        if status.health_status_code == _HTTP_OK and is_running and is_ours and not status.state.is_final:
            # The journal's line may come later than the answer.
            self._set(phase=next(phase for phase in list_phases() if phase.id == _SERVING), percent=None)
            self._become(LaunchState.READY, f"/health answers 200 after {status.elapsed_s:.0f} s")

    def _check_stall(self) -> None:
        status = self.status
        is_waiting = status.state is LaunchState.STARTING and not status.waiting_for
        if is_waiting and status.quiet_s > self._stall_s:
            self._become(LaunchState.STALLED, f"{self._stalled_words()}; {self._last_seen()}")

    def _stalled_words(self) -> str:
        status = self.status
        alive = f", its process (pid {status.main_pid}) is alive" if status.main_pid else ""
        return f"no news for {status.quiet_s:.0f} s{alive}; the last was {status.last_line[:160]!r}"

    def _last_seen(self) -> str:
        status = self.status
        phase = status.phase.title if status.phase else list_phases()[0].title
        unit = f"{status.active_state} ({status.sub_state})" if status.active_state else "not seen"
        health = status.health_status_code if status.health_status_code is not None else "closed"
        return f"last seen: {phase}, unit {unit}, /health {health}, last line {status.last_line[:160]!r}"

    def _become(self, state: LaunchState, reason: str) -> None:
        self._set(state=state, reason=reason)

    def _set(self, **values: object) -> None:
        self.status = self.status.model_copy(update=values)
