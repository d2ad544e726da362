"""Whether a host is fit for a launch: a table of checks, each with its state, its evidence and what to do."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from opslib.domain.preflight_gpus import check_driver, check_gpu_health, check_gpu_memory, check_gpus, check_kernel
from opslib.domain.preflight_host import (
    check_clock,
    check_disk,
    check_engine,
    check_flags,
    check_limits,
    check_lock,
    check_memory,
    check_model,
    check_port,
    check_receipt,
    check_shared_memory,
)
from opslib.domain.preflight_look import Look, PreflightCheck
from opslib.domain.states import State, Value

# name -> question; the order is that of an operator's questions
CHECKS: Mapping[str, Callable[[Look], PreflightCheck]] = {
    "lock": check_lock,
    "gpus": check_gpus,
    "driver": check_driver,
    "gpu health": check_gpu_health,
    "kernel": check_kernel,
    "gpu memory": check_gpu_memory,
    "port": check_port,
    "engine": check_engine,
    "flags": check_flags,
    "model": check_model,
    "receipt": check_receipt,
    "disk": check_disk,
    "shared memory": check_shared_memory,
    "memory": check_memory,
    "limits": check_limits,
    "clock": check_clock,
}
# What a rehearsal host has from the machine that it runs on.
_BORROWED = ("disk", "shared memory", "memory", "limits")
# What an engine that serves has disproved, whatever was feared.
PROVEN_BY_START = frozenset({"gpus", "driver", "gpu memory", "port", "engine", "flags", "model", "memory"})


class PreflightReport(Value):
    """What a preflight came to.

    The state is critical or a warning where a check is; what could not be found out is told and decides nothing, but
    where nothing could be.
    """

    host: str
    unit: str
    state: State
    summary: str
    next_step: str = ""
    cause: str = ""
    checks: tuple[PreflightCheck, ...] = ()
    asked_at: datetime
    duration_s: float

    def after_start(self) -> State:
        """The state that counts once the engine serves."""
        return overall(check.state for check in self.checks if check.name not in PROVEN_BY_START)


def judge_preflight(look: Look, *, asked_at: datetime, duration_s: float) -> PreflightReport:
    """What the table of checks says about a look at a host."""
    checks = tuple(_judged(name, check, look) for name, check in CHECKS.items())
    state = overall(check.state for check in checks)
    told = [check for check in checks if check.state is state]
    return PreflightReport(
        host=look.host,
        unit=look.wanted.unit,
        state=state,
        summary=_summary(state, told, checks),
        next_step=told[0].next_step if state in (State.CRITICAL, State.WARNING) else "",
        cause=told[0].cause if state is State.CRITICAL else "",
        checks=checks,
        asked_at=asked_at,
        duration_s=round(duration_s, 3),
    )


def overall(states: Iterable[State]) -> State:
    """Critical, else a warning, else ok where anything is; unknown where nothing could be found out."""
    seen = set(states)
    return next((state for state in (State.CRITICAL, State.WARNING, State.OK) if state in seen), State.UNKNOWN)


def _judged(name: str, check: Callable[[Look], PreflightCheck], look: Look) -> PreflightCheck:
    found = check(look).model_copy(update={"name": name})
    if look.is_rehearsal and name in _BORROWED:
        words = f"{found.summary} (this machine's)"
        return found.model_copy(update={"state": State.OK, "summary": words, "next_step": "", "cause": ""})
    return found


def _summary(state: State, told: list[PreflightCheck], checks: tuple[PreflightCheck, ...]) -> str:
    if state in (State.CRITICAL, State.WARNING):
        return told[0].summary + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")
    unknown = [check.name for check in checks if check.state is State.UNKNOWN]
    words = f"{len(checks) - len(unknown)} of {len(checks)} checks are good"
    return words + (f"; not known: {', '.join(unknown)}" if unknown else "")
