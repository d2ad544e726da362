"""What a rollout does next, and what it has come to: gates, waves, reasons to stop, outcome."""

from collections.abc import Iterator, Sequence

from opslib.domain.record import RunRecord
from opslib.domain.rollout import CANARY_WAVE, HostStep, waves
from opslib.domain.rollout_state import HostProgress, RolloutState
from opslib.domain.run_facts import STARTS, has_come_up, section_value
from opslib.domain.states import CheckResult, Outcome, State, worst

_STEPS = {
    State.OK: HostStep.PASSED,
    State.WARNING: HostStep.PASSED,
    State.CRITICAL: HostStep.FAILED,
    State.UNKNOWN: HostStep.UNKNOWN,
}
_REFUSED = 4


def judge_gates(record: RunRecord) -> tuple[CheckResult, ...]:
    """What a host's own record has to say before the next host may follow.

    Its outcome; ready, where the runbook starts a unit; the canary's fingerprint, where one was taken; the benchmark
    not worse, where it was compared. A warning passes; figures that are worse do not, whatever the run calls them.
    """
    return tuple(_gates(record))


def _gates(record: RunRecord) -> Iterator[CheckResult]:
    if record.outcome is None:
        yield CheckResult(name="outcome", state=State.UNKNOWN, summary="its run came to no outcome")
        return
    is_refused = record.status == "finished" and record.shown_exit_code == _REFUSED
    state = State.CRITICAL if is_refused else record.outcome.state
    yield CheckResult(name="outcome", state=state, summary=record.outcome.reason)
    names = {section.name for section in record.sections}
    if names & set(STARTS) and state in (State.OK, State.WARNING):
        ready = State.OK if has_come_up(record) else State.CRITICAL
        yield CheckResult(name="ready", state=ready, summary="it answers" if has_come_up(record) else "never was ready")
    verdict = section_value(record, "canary").get("verdict")
    if verdict is not None:
        summary = str(section_value(record, "canary").get("summary") or verdict)
        canary = {"corrupt": State.CRITICAL, "unknown": State.UNKNOWN}.get(str(verdict), State.OK)
        yield CheckResult(name="canary", state=canary, summary=summary)
    comparison = section_value(record, "compare")
    if comparison.get("verdict") is not None:
        is_worse = comparison["verdict"] == "worse" and not comparison.get("differences")
        summary = str(comparison.get("summary") or comparison["verdict"])
        yield CheckResult(name="benchmark", state=State.CRITICAL if is_worse else State.OK, summary=summary)


def step_of(checks: Sequence[CheckResult]) -> tuple[HostStep, State, str]:
    """Where a host stands after its run: the step, the state and the sentence of the worst gate."""
    state = worst(check.state for check in checks)
    said = next((check.summary for check in checks if check.state is state), "")
    return _STEPS[state], state, said


def why_no_more(state: RolloutState) -> str:
    """Why no other host may be begun; "" where one may."""
    failed = state.failures
    if state.phase in ("stopping", "ended", "undoing", "undone"):
        return f"it was asked to stop ({state.asked})" if state.phase == "stopping" else f"it has {state.phase}"
    canary = [progress for progress in failed if progress.wave == CANARY_WAVE]
    if canary:
        return f"the canary {canary[0].host} {_how(canary[0])}"
    if len(failed) > state.plan.max_failures:
        limit = f", {state.plan.max_failures} allowed" if state.plan.max_failures else ""
        return f"{', '.join(f'{progress.host} {_how(progress)}' for progress in failed)}{limit}"
    return ""


def next_wave(state: RolloutState) -> tuple[int, tuple[str, ...]]:
    """The number of the wave whose turn it is, and its hosts that are still to come; none where nothing may follow."""
    if not why_no_more(state):
        for number, group in enumerate(waves(state.plan)):
            due = tuple(alias for alias in group if state.host(alias).is_due)
            if due:
                return number, due
    return -1, ()


def judge_rollout(state: RolloutState) -> Outcome:
    """What the rollout has come to; names the hosts that failed, and those that nothing was done to."""
    n_hosts, passed = len(state.hosts), state.at(HostStep.PASSED)
    others = [progress for progress in state.hosts if progress.step is not HostStep.PASSED]
    if not others:
        found = worst(progress.state or State.OK for progress in passed)
        warned = [progress for progress in passed if progress.state is not None and progress.state is not State.OK]
        more = f"; {_named(warned)}" if warned else ""
        return Outcome(state=found, reason=f"all {n_hosts} hosts passed{more}")
    bad, why = state.failures, why_no_more(state)
    said = [f"{len(passed)} of {n_hosts} hosts passed", _named(bad) if bad else "", _untouched(state)]
    due = [progress.host for progress in others if progress.is_due and progress.step is not HostStep.UNTOUCHED]
    said.append(f"to be asked again: {', '.join(due)}" if due else "")
    reason = "; ".join(filter(None, said))
    if not why and not any(progress.is_due for progress in others):
        return Outcome(state=State.WARNING, reason=f"{reason}; {len(bad)} failed, as many as were allowed")
    stopped = f"stopped: {reason}" if bad else f"stopped, {why or 'before its end'}: {reason}"
    if any(progress.step is HostStep.FAILED for progress in bad):
        return Outcome(state=State.CRITICAL, reason=stopped)
    return Outcome(state=State.UNKNOWN, reason=stopped)


def judge_undo(state: RolloutState) -> Outcome:
    """What undoing has come to; names the hosts that are not as they were found."""
    undone = state.at(HostStep.UNDONE)
    left = [progress for progress in state.hosts if progress.found is not None and progress.step is not HostStep.UNDONE]
    n_never = len(state.hosts) - len(undone) - len(left)
    never = f"; {n_never} had not been touched" if n_never else ""
    one, many = ("1 host", "is", "it", "it was"), (f"{len(undone)} hosts", "are", "them", "they were")
    n_hosts, are, them, they = one if len(undone) == 1 else many
    if not left:
        return Outcome(state=State.OK, reason=f"{n_hosts} {are} as the rollout found {them}{never}")
    is_unknown = state.phase == "stopping" or all(progress.step is HostStep.UNKNOWN for progress in left)
    reason = f"{n_hosts} {are} as {they} found; {_named(left)}{never}"
    return Outcome(state=State.UNKNOWN if is_unknown else State.CRITICAL, reason=reason)


def _how(progress: HostProgress) -> str:
    return "failed" if progress.step is HostStep.FAILED else "came to no known end"


def _named(hosts: Sequence[HostProgress]) -> str:
    return "; ".join(f"{progress.host} {progress.step}: {progress.text}" for progress in hosts)


def _untouched(state: RolloutState) -> str:
    return f"untouched: {', '.join(state.untouched)}" if state.untouched else ""
