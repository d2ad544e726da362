"""A rollout as a record like any other: one section per host, and a notebook that tells it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat

from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.rollout import HostStep, wave_words, waves
from opslib.domain.rollout_state import HostProgress, RolloutState
from opslib.domain.states import State
from opslib.records.folder import HTML_FILE
from opslib.records.rollout import RolloutFolder

RUNBOOK = "rollout"
_STATES = {
    HostStep.PASSED: State.OK,
    HostStep.UNDONE: State.OK,
    HostStep.FAILED: State.CRITICAL,
}
_COLUMNS = ("wave", "host", "step", "how it ended", "record")


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
        started_at=plan.begun_at,
        sections=tuple(_section(progress) for progress in state.hosts if progress.begun_at),
        status="finished" if state.outcome else "running",
        exit_code=state.outcome.state.exit_code if state.outcome else None,
        notes=state.notes,
        left=f"untouched: {', '.join(state.untouched)}" if state.outcome and state.untouched else "",
        **ended,
    )


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
    """The rollout as a notebook of prose and tables, from which its page is made."""
    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    notebook.cells = [nbformat.v4.new_markdown_cell(text) for text in story(state)]  # type: ignore[no-untyped-call]
    folder.folder.write_notebook(notebook)


def story(state: RolloutState) -> list[str]:
    """The paragraphs: what was asked, host by host, and how to go on."""
    plan, groups = state.plan, waves(state.plan)
    sizes = [f"{wave_words(number, len(groups))}: {len(group)}" for number, group in enumerate(groups) if group]
    chosen = f"{len(plan.hosts)} hosts ({', '.join(plan.asked) or 'by name'})"
    asked = f"`{plan.runbook}` for {plan.unit} over {chosen}. {', '.join(sizes)}."
    rows = [_row(progress, len(groups)) for progress in state.hosts]
    table = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS), *rows]
    told = [f"# Is {plan.runbook} rolled out?", asked, "\n".join(table)]
    if state.notes:
        told.append("\n".join(f"- {note}" for note in state.notes))
    return told


def _row(progress: HostProgress, n_waves: int) -> str:
    link = f"[{progress.record}](../{progress.record}/{HTML_FILE})" if progress.record else ""
    text = progress.text.replace("|", "\\|").replace("\n", " ")
    return f"| {wave_words(progress.wave, n_waves)} | {progress.host} | {progress.step} | {text} | {link} |"


def how_to_go_on(path: Path, state: RolloutState) -> dict[str, str]:
    """The commands that continue from here, by what they do."""
    resume, undo = f"opslib rollout --resume {path}", f"opslib rollout --undo {path}"
    if state.is_undone:
        return {} if state.outcome and state.outcome.state is State.OK else {"undo": undo}
    is_whole = len(state.at(HostStep.PASSED)) == len(state.hosts)
    is_touched = any(progress.found for progress in state.hosts)
    return {**({} if is_whole else {"go on": resume}), **({"undo": undo} if is_touched else {})}
