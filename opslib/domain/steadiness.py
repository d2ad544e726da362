"""Did a service stay well for a while? Judges what was seen of it: systemd's answers and `/health`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch_events import HealthSeen, LaunchEvent, UnitSeen
from opslib.domain.states import CheckResult, State

NAME = "steadiness"
_HTTP_OK = 200


def check_steadiness(events: Iterable[LaunchEvent], *, unit: str, invocation_id: str = "") -> CheckResult:
    """Whether the start `invocation_id` of a unit went on running, and its `/health` answered 200 all the time.

    Critical: it ended, also where systemd calls that a success. Warning: `/health` changed. The first invocation seen
    counts where none is given.
    """
    seen = list(events)
    units = [event.status for event in seen if isinstance(event, UnitSeen) and event.status.is_installed]
    codes = [event.status_code for event in seen if isinstance(event, HealthSeen)]
    invocation_id = invocation_id or (units[0].invocation_id if units else "")
    for status in units:
        if status.invocation_id != invocation_id or status.active_state != "active":
            return CheckResult(name=NAME, state=State.CRITICAL, summary=f"{unit} {_ended(status, invocation_id)}")
    if not units or not codes:
        return CheckResult(name=NAME, state=State.UNKNOWN, summary=f"{unit} could not be watched")
    answers = [code for code in codes if code is not None]  # one that came late under load is no change
    if codes[-1] is None or any(code != _HTTP_OK for code in answers):
        return CheckResult(name=NAME, state=State.WARNING, summary=_changing(codes))
    return CheckResult(name=NAME, state=State.OK, summary="/health answered 200 all the time")


def has_ended(events: Sequence[LaunchEvent]) -> bool:
    """Whether the unit does not run any more, or another start of it does, by the last that was seen."""
    units = [event.status for event in events if isinstance(event, UnitSeen)]
    return bool(units) and (units[-1].active_state != "active" or units[-1].invocation_id != units[0].invocation_id)


def is_healthy(events: Sequence[LaunchEvent]) -> bool:
    """Whether `/health` answers 200, by the last that was seen."""
    codes = [event.status_code for event in events if isinstance(event, HealthSeen)]
    return bool(codes) and codes[-1] == _HTTP_OK


def _ended(status: UnitStatus, invocation_id: str) -> str:
    if status.invocation_id and status.invocation_id != invocation_id:
        return f"has ended and was started again ({status.n_restarts} restarts)"
    if status.active_state == "failed" or status.result not in {"", "success"}:
        return f"has ended: systemd says {status.active_state}, result {status.result}"
    if status.active_state in {"inactive", "deactivating"} or status.sub_state.startswith("auto-restart"):
        return "has ended while it was measured, and systemd calls it a success"
    return f"is {status.active_state} ({status.sub_state})"


def _changing(codes: list[int | None]) -> str:
    if codes[-1] is None:
        return "/health does not answer any more"
    words = [str(code) for code in codes if code is not None]
    n_changes = sum(before != after for before, after in pairwise(words))
    if not n_changes:
        return f"/health answers {words[0]}, not 200"
    times = "once" if n_changes == 1 else f"{n_changes} times"
    return f"/health did not answer 200 all the time: it changed {times} between {' and '.join(sorted(set(words)))}"
