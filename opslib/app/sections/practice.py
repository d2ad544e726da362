"""What only the rehearsal host needs: a crash to investigate, a service to measure."""

from typing import Any

from opslib.app.live import iterate
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, waiting_section
from opslib.app.sections.install import plan_for_unit
from opslib.app.watching import LaunchPanel
from opslib.domain.launch import LaunchState
from opslib.domain.parameters import validate_parameters
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.views.panels import answer_panel
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import apply_plan
from opslib.workflow.launch import start_unit, watch_launch

NOT_REHEARSAL = "not a rehearsal host: nothing was prepared"


@waiting_section("prepare-crash")
async def prepare_crash(run: Run) -> Answer:
    """Lets the practice unit crash, so that there is something to investigate; nothing on other hosts."""
    return await _prepare(run, LaunchState.CRASHED)


@waiting_section("prepare-service")
async def prepare_service(run: Run) -> Answer:
    """Brings the practice service up, so that there is something to measure; nothing on other hosts."""
    return await _prepare(run, LaunchState.READY)


async def _prepare(run: Run, wanted: LaunchState) -> Answer:
    unit = run.parameters.unit
    if not run.host.settings.is_rehearsal:
        summary = NOT_REHEARSAL
    elif run.is_dry_run:
        summary = "dry run: nothing was prepared"
    elif gather_unit_status(run.host, unit).is_installed:
        summary = f"{unit} is installed already: nothing was prepared"
    else:
        summary = await _deploy_practice_unit(run, wanted)
    return SectionResult(state=State.OK, summary=summary), answer_panel(run.alias, State.OK, summary)


async def _deploy_practice_unit(run: Run, wanted: LaunchState) -> str:
    parameters: Any = validate_parameters("30-launch", {"host": run.parameters.host, "unit": run.parameters.unit})
    practice = Run(parameters, run.host, run.folder, run.record)
    apply_plan(run.host, plan_for_unit(practice))
    start = start_unit(run.host, parameters.unit)
    panel = LaunchPanel(practice, "prepare")
    async for update in iterate(lambda: watch_launch(run.host, parameters.unit, port=8000, timeout_s=120, start=start)):
        panel.take(update)
    panel.close()
    reached = panel.status.state if panel.status else None
    if reached is not wanted:
        hint = "take another scenario: rehearsal:healthy" if wanted is LaunchState.READY else "take another scenario"
        raise CouldNotFindOut(f"the practice unit came out as {reached}, not {wanted}", host=run.alias, hint=hint)
    return f"{parameters.unit} {reached} for practice"
