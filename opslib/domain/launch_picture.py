"""What is known of a launch while it is watched: its starts one after the other, and how each of them ended."""

from collections.abc import Collection, Sequence
from datetime import datetime

from opslib.domain.facts.restart_budget import RestartBudget
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch_eta import Durations, eta_s
from opslib.domain.launch_phases import FIRST_TOKEN, SERVING, PhaseTrack, launch_phase
from opslib.domain.launch_signs import failure_words
from opslib.domain.launch_status import FINAL, Crash, LaunchState, LaunchStatus
from opslib.domain.survey import age_words

_HTTP_OK = 200
_SYSTEMD_SAYS = "status="  # so it writes an exit in the journal; what `systemctl show` knows of it is less


class LaunchPicture:
    """Keeps `status`, and the phases of the present start; what was seen is read elsewhere."""

    def __init__(
        self,
        started_at: datetime,
        *,
        before: UnitStatus | None,
        ends_at: Collection[LaunchState],
        earlier: Sequence[Durations],
        budget: RestartBudget | None,
    ) -> None:
        self.status = LaunchStatus(since=started_at, at=started_at, last_heard_at=started_at)
        self.old_invocations = {before.invocation_id} - {""} if before else set()
        self.n_restarts: int | None = None  # as systemd last told it of the present start
        self._ends_at = frozenset(ends_at)
        self._earlier = earlier
        self._budget = budget
        self._starts: tuple[datetime, ...] = ()
        self._is_adopted_midway = before is None  # somebody else started it: it may serve already
        self._begin_start()

    def _begin_start(self) -> None:
        self.track = PhaseTrack()
        self.was_closed = False  # /health was seen closed during this invocation
        self.is_stop_asked = False
        self.is_serving = self._is_adopted_midway

    @property
    def is_over(self) -> bool:
        """Whether nothing more is waited for."""
        return self.status.state in self._ends_at

    @property
    def has_crashed(self) -> bool:
        """Whether the crash of the present start is known."""
        return self._crash_of(self.status.invocation_id) is not None

    @property
    def lacks_start(self) -> bool:
        """Whether a start was asked for, and systemd knows of none."""
        is_unseen = self.status.state is LaunchState.STARTING and self.status.active_state == "inactive"
        return is_unseen and not self._starts and not self._is_adopted_midway

    def set(self, **values: object) -> None:
        """Know this of the launch."""
        self.status = self.status.model_copy(update=values)

    def become(self, state: LaunchState, reason: str) -> None:
        """Stand there, for that reason."""
        self.set(state=state, reason=reason)

    def note(self, text: str) -> None:
        """Say once what an operator must know of the picture itself."""
        if text not in self.status.notes:
            self.set(notes=(*self.status.notes, text)[-20:])

    # -- starts

    def adopt(self, invocation_id: str, at: datetime) -> None:
        """Where no start was known, from now on that one is watched."""
        if invocation_id and not self.status.invocation_id:
            self.set(invocation_id=invocation_id, health_status_code=None)
            self._starts = (*self._starts, at)
            if self.status.state in {LaunchState.RESTARTING, LaunchState.CRASHED}:
                self.become(LaunchState.STARTING, "")

    def next_start(self, invocation_id: str) -> None:
        """Systemd has started it again: what is known of the start before counts no more."""
        known = self.status.invocation_id
        if self.is_over or not invocation_id or invocation_id == known:
            return
        if not self.has_crashed:
            self.crashed("invocation_id", f"InvocationID changed from {known} to {invocation_id}")
        if self.is_over:
            return
        self.old_invocations |= {known}
        self.n_restarts = None  # this start is one of them: counted from the next answer on
        self._is_adopted_midway = False
        self._begin_start()
        none_known = {"phase": None, "percent": None, "answer": None, "invocation_id": "", "waiting_for": ""}
        self.set(**none_known, health_status_code=None)
        self.adopt(invocation_id, self.status.at)

    # -- how they end

    def crashed(
        self,
        noticed_by: str,
        text: str,
        *,
        died_at: datetime | None = None,
        unit: UnitStatus | None = None,
        exit_status: str = "",
    ) -> None:
        """The present start has ended, noticed by this; once that is known, only how it ended is added."""
        invocation_id = self.status.invocation_id
        if self._crash_of(invocation_id) is None:
            its = unit if unit and unit.invocation_id == invocation_id else None
            died_at = died_at or (its.exec_main_exit_at if its else None)
            told = exit_status or (its.exit_words if its else "")
            crash = self._crash(noticed_by, text, died_at=died_at, exit_status=told)
            self.set(crash=crash, crashes=(*self.status.crashes, crash))
            self.track.close(died_at or self.status.at)
        else:
            self.complete(invocation_id, exit_status, died_at)
        self.become(LaunchState.CRASHED, self.status.crash.words if self.status.crash else text)

    @property
    def lacks_exit(self) -> bool:
        """Whether systemd's own word on how the last crash came about has not been read yet."""
        crash = self.status.crash
        return crash is not None and crash.noticed_by != "boot" and _SYSTEMD_SAYS not in crash.exit_status

    def complete(self, invocation_id: str, exit_status: str, died_at: datetime | None) -> None:
        """Systemd's word on how a crashed start ended came after the crash was noticed."""
        crash = self._crash_of(invocation_id)
        if crash is None or not exit_status or _SYSTEMD_SAYS in crash.exit_status:
            return
        complete = crash.model_copy(update={"exit_status": exit_status, "died_at": crash.died_at or died_at})
        self.set(crashes=tuple(complete if other is crash else other for other in self.status.crashes))
        if self.status.crash is crash:
            reason = complete.words if self.status.reason == crash.words else self.status.reason
            self.set(crash=complete, reason=reason)

    def failed(self, unit: UnitStatus) -> None:
        """Systemd has given the unit up."""
        how = failure_words(unit)
        crash = self._crash("active_state", how, died_at=unit.exec_main_exit_at, exit_status=unit.exit_words)
        self.set(crash=self.status.crash or crash)
        self.become(LaunchState.FAILED, how)

    def time_out(self) -> None:
        """The time is up; where the host could not be heard by then, nobody knows what the unit does."""
        status = self.status
        is_lost = status.state is LaunchState.UNREACHABLE
        self.set(is_unheard=is_lost or not status.active_state)
        words = status.stalled_words if status.state is LaunchState.STALLED else status.last_seen_words
        self.become(LaunchState.TIMED_OUT, f"unreachable when the time was up; {words}" if is_lost else words)

    def restarting(self, unit: UnitStatus) -> None:
        """Systemd waits before it starts the unit again."""
        self.become(LaunchState.RESTARTING, f"systemd waits to restart it (result {unit.result})")

    def _crash_of(self, invocation_id: str) -> Crash | None:
        return next((crash for crash in self.status.crashes if crash.invocation_id == invocation_id), None)

    def _crash(self, noticed_by: str, text: str, *, died_at: datetime | None, exit_status: str) -> Crash:
        return Crash(
            invocation_id=self.status.invocation_id,
            noticed_by=noticed_by,
            text=text,
            seen_at=self.status.at,
            died_at=died_at,
            exit_status=exit_status,
            phase=self.track.current.title if self.track.current else "",
        )

    # -- what follows from all of it

    def check_ready(self) -> None:
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
        if answer.is_ours is None and not (self.is_serving or self.was_closed):
            return
        for phase_id in (SERVING, FIRST_TOKEN) if answer.kind != "none" else (SERVING,):
            self.track.move(phase_id, status.at)  # the journal's line may come later than the answer
        if self.was_closed:  # else it may have served long before the first look
            self.become(LaunchState.READY, f"/health answers 200 after {status.elapsed_s:.0f} s")
        else:
            self.become(LaunchState.READY, f"/health answers 200, up for {age_words(status.elapsed_s)}")

    def refresh(self) -> None:
        """Phase, progress and estimate, as the phases' track has them."""
        span, status = self.track.current, self.status
        phase = launch_phase(span.id).model_copy(update={"percent": span.percent}) if span else None
        is_going_on = status.state in {LaunchState.STARTING, LaunchState.STALLED, LaunchState.UNREACHABLE}
        estimate = eta_s(self.track.spans, self._earlier, status.at) if self._earlier and is_going_on else None
        values = {"phase": phase, "percent": span.percent if span else None, "phases": self.track.spans}
        words = self._budget.words(self._starts, status.at) if self._budget and status.crashes else ""
        self.set(**values, eta_s=estimate, budget_words=words)
