"""A rollout as a record like any other: one section per host, and a notebook that tells it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opslib.app.fleet_matrix import FleetMatrix
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.rollout import HostStep, wave_words, waves
from opslib.domain.rollout_state import HostProgress, RolloutState
from opslib.domain.states import State
from opslib.records.rollout import RolloutFolder

RUNBOOK = "rollout"
_SOURCE = "# each host, and how far its run has come"
_STATES = {
    HostStep.PASSED: State.OK,
    HostStep.UNDONE: State.OK,
    HostStep.FAILED: State.CRITICAL,
}


def record_of_rollout(state: RolloutState) -> RunRecord:
    """The rollout's own record: hosts that something was done to are its sections."""
    plan = state.plan
    ended = {"ended_at": state.ended_at, "outcome": state.outcome} if state.outcome else {}
    return RunRecord(
        runbook=RUNBOOK,
        parameters={"runbook": plan.runbook, "hosts": list(plan.hosts), **dict(plan.parameters)},
        host=f"{len(plan.hosts)}-hosts",
        unit=plan.unit,
        ticket=str(plan.parameters.get("ticket") or ""),
        # of one that runs: when its newest process began, by which others see whether that is still there
        started_at=plan.begun_at if state.outcome else state.begun_at or plan.begun_at,
        sections=tuple(_section(progress) for progress in state.hosts if progress.begun_at),
        status="finished" if state.outcome else "running",
        exit_code=state.outcome.state.exit_code if state.outcome else None,
        notes=state.notes,
        left=_left(state),
        **ended,
    )


def _left(state: RolloutState) -> str:
    """What the rollout leaves; of one that was killed this is what its record says."""
    untouched = f"untouched: {', '.join(state.untouched)}" if state.untouched else ""
    if state.outcome:
        return untouched
    touched = ", ".join(progress.host for progress in state.hosts if progress.found)
    go_on = "opslib rollout --resume asks each host and goes on, --undo takes it back"
    return "; ".join(filter(None, (f"touched: {touched}" if touched else "", untouched, go_on)))


def _section(progress: HostProgress) -> SectionRecord:
    begun = progress.begun_at or datetime.now(UTC)
    value: dict[str, Any] = {"step": progress.step, "wave": progress.wave, "record": progress.record}
    return SectionRecord(
        name=f"on {progress.host}",
        state=_state(progress),
        summary=f"{progress.step}{f': {progress.text}' if progress.text else ''}",
        value={**value, "records": list(progress.records)},
        started_at=begun,
        duration_s=round(max(0.0, ((progress.since_at or begun) - begun).total_seconds()), 3),
    )


def _state(progress: HostProgress) -> State:
    if progress.step is HostStep.PASSED:
        return progress.state or State.OK
    return _STATES.get(progress.step, State.UNKNOWN)


def write_story(folder: RolloutFolder, state: RolloutState) -> None:
    """The rollout as a notebook of prose and the matrix of hosts and sections, from which its page is made."""
    shown = FleetMatrix(folder.path.parent, folder.path).shown(state)
    matrix = {"output_type": "display_data", "metadata": {}, "data": shown._repr_mimebundle_()}
    title, asked, *notes = map(_markdown, story(state))
    code = {"cell_type": "code", "source": _SOURCE, "execution_count": None, "outputs": [matrix]}
    cells = [{**cell, "id": f"rollout-{n}", "metadata": {}} for n, cell in enumerate((title, asked, code, *notes))]
    folder.folder.write_notebook({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": text}


def story(state: RolloutState) -> list[str]:
    """The paragraphs: the question, what was asked for, and what befell the rollout."""
    plan, groups = state.plan, waves(state.plan)
    sizes = [f"{wave_words(number, len(groups))}: {len(group)}" for number, group in enumerate(groups) if group]
    chosen = f"{len(plan.hosts)} hosts ({', '.join(plan.asked) or 'by name'})"
    asked = f"`{plan.runbook}` for {plan.unit} over {chosen}. {', '.join(sizes)}."
    told = [f"# Is {plan.runbook} rolled out?", asked]
    if state.notes:
        told.append("\n".join(f"- {note}" for note in state.notes))
    return told


def how_to_go_on(path: Path, state: RolloutState) -> dict[str, str]:
    """The commands that continue from here, by what they do."""
    resume, undo = f"opslib rollout --resume {path}", f"opslib rollout --undo {path}"
    if state.is_undone:
        return {} if state.outcome and state.outcome.state is State.OK else {"undo": undo}
    is_whole = len(state.at(HostStep.PASSED)) == len(state.hosts)
    is_touched = any(progress.found for progress in state.hosts)
    return {**({} if is_whole else {"go on": resume}), **({"undo": undo} if is_touched else {})}
