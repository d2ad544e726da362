"""A unit that takes another one's place: the old one is stopped before, and brought back where the new one fails."""

import asyncio
import time
from datetime import UTC, datetime

from opslib.app.locking import holder_of, require_lock
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, waiting_section
from opslib.domain.launch_status import LaunchState
from opslib.domain.lifecycle import LifecycleReport
from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.views.panels import answer_panel, error_panel
from opslib.views.shown import Shown
from opslib.workflow import lifecycle
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.lock import hold_lock

_REPLACED = "replaced"  # under which name the run keeps the unit that it has stopped
_RUNS = frozenset({"active", "activating", "reloading"})


@waiting_section("replace", changes=True)
async def replace(run: Run) -> Answer:
    """The unit named by `replaces` is stopped, and its GPU memory asked for until it is really released."""
    old: str | None = run.parameters.replaces
    if old is None:
        return _said(State.OK, "no unit is replaced", run)
    status = gather_unit_status(run.host, old)
    if status.active_state not in _RUNS:
        words = status.active_state if status.is_installed else "not known to systemd"
        return _said(State.OK, f"{old} is {words}: nothing to stop", run)
    require_lock(run)
    run.closing.enter_context(hold_lock(run.host, old, holder_of(run)))
    run.answers[_REPLACED] = old
    report = await asyncio.to_thread(lifecycle.stop, run.host, old, tell=_teller(run, "replace"))
    run.answers["undo"] = [*run.answers.get("undo", []), f"sudo systemctl start {old}"]  # when all else is undone
    if report.state is not State.OK:
        return _answer(run, report)
    enabled = "; it is enabled, so a reboot would start both" if status.unit_file_state == "enabled" else ""
    return _answer(run, report.model_copy(update={"summary": f"{report.summary}{enabled}"}))


async def bring_back(run: Run) -> Shown:
    """Where the new unit doesn't serve: it is stopped, and the unit that it replaced is started and asked again.

    It is no section that a stop of the runbook would skip: it is there for that case.
    """
    old: str | None = run.answers.get(_REPLACED)
    status = run.answers.get("launch")
    if old is None or (status is not None and status.state is LaunchState.READY):
        summary = "no unit has to come back" if old is None else f"{old} stays stopped: {run.parameters.unit} serves"
        return _said(State.OK, summary, run)[1]
    started_at, start = datetime.now(UTC), time.monotonic()
    try:
        result, shown = _answer(run, await asyncio.to_thread(_change_places, run, old))
        run.answers.pop(_REPLACED)
    except OpslibError as error:
        result, shown = SectionResult(state=State.UNKNOWN, summary=str(error)), error_panel(run.alias, error)
    run.keep("bring-back", result, started_at=started_at, duration_s=time.monotonic() - start)
    run.tell("section-ended", result.summary, section="bring-back", state=result.state)
    return shown


def _change_places(run: Run, old: str) -> LifecycleReport:
    tell = _teller(run, "bring-back")
    lifecycle.stop(run.host, run.parameters.unit, tell=tell)
    return lifecycle.start(run.host, old, ready_s=float(run.parameters.ready_timeout_s), tell=tell)


def _teller(run: Run, section: str) -> lifecycle.Told:
    return lambda text: run.tell("line", text, section=section)


def _answer(run: Run, report: LifecycleReport) -> Answer:
    rows = [(check.name, check.state, check.summary) for check in report.checks]
    shown = answer_panel(run.alias, report.state, report.summary, rows=rows, columns=("asked again", "state", "answer"))
    value = report.model_dump(mode="json")
    return SectionResult(state=report.state, summary=report.summary, value=value), shown


def _said(state: State, summary: str, run: Run) -> Answer:
    return SectionResult(state=state, summary=summary), answer_panel(run.alias, state, summary)
