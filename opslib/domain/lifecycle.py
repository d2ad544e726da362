"""Start, stop, restart and drain of a unit as values: the steps that are shown first, and what became of them."""

from typing import Literal

from opslib.domain.facts.systemd import UnitStatus, unit_name
from opslib.domain.plans import Plan, Step
from opslib.domain.states import CheckResult, State, Value, worst

Verb = Literal["start", "stop", "restart", "drain"]
_RUNS = frozenset({"active", "activating", "reloading"})


class LifecycleReport(Value):
    """What a verb did to a unit: a sentence, and every question that was asked again afterwards."""

    host: str
    unit: str
    verb: str
    state: State
    summary: str
    checks: tuple[CheckResult, ...] = ()
    duration_s: float = 0.0


def plan_verb(host: str, status: UnitStatus, verb: Verb, *, drain_s: float = 0.0) -> Plan:
    """The steps of a verb for a unit that is in this state; empty where it is there already."""
    unit = unit_name(status.unit)
    steps: list[Step] = []
    if verb == "drain" and status.active_state in _RUNS:
        steps.append(Step(title=f"wait until {unit} works on no request, {drain_s:.0f} s at most"))
    if verb in {"stop", "drain"}:
        if status.active_state in _RUNS:
            steps += [_step(f"stop {unit}", "stop", unit, undo=f"systemctl start {unit}")]
            steps.append(Step(title="ask until its GPU memory is released"))
    elif verb == "restart" or status.active_state not in {"active", "reloading"}:
        steps += forget_steps(status)
        words = "restart" if status.active_state in _RUNS else "start"
        steps.append(_step(f"{words} {unit}", words, unit, undo=f"systemctl stop {unit}"))
        steps.append(Step(title="ask until it answers, from the new invocation and with the unit's own flags"))
    return Plan(host=host, title=f"{verb} {unit}", steps=tuple(steps))


def forget_steps(status: UnitStatus) -> tuple[Step, ...]:
    """The step without which systemd would refuse a start: after failures it counts them against the start limit."""
    if status.active_state != "failed":
        return ()
    unit = unit_name(status.unit)
    why = "the start limit was hit" if status.result == "start-limit-hit" else f"it failed: {status.result}"
    command = ("systemctl", "reset-failed", "--", unit)
    return (Step(title=f"let systemd forget the failed starts of {unit} ({why})", command=command, undo="none needed"),)


def _step(title: str, verb: str, unit: str, *, undo: str) -> Step:
    options = () if verb == "stop" else ("--no-block",)
    return Step(title=title, command=("systemctl", *options, verb, "--", unit), undo=undo)


def report_of(
    host: str, unit: str, verb: str, checks: tuple[CheckResult, ...], good: str, *, duration_s: float
) -> LifecycleReport:
    """The report whose state is that of the worst check, and whose sentence is that check's, or `good`."""
    state = worst(check.state for check in checks)
    bad = next((check for check in checks if check.state is state and state is not State.OK), None)
    summary = f"{unit_name(unit)} {good if bad is None else f'{verb}: {bad.summary}'}"
    return LifecycleReport(
        host=host, unit=unit_name(unit), verb=verb, state=state, summary=summary, checks=checks, duration_s=duration_s
    )
