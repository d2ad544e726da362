"""Is the host fit for this launch, and is nobody else at work on the unit?"""

from opslib.app.locking import LOCK, lock_unit
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.app.wanted import wanted_for
from opslib.domain.preflight import PreflightReport
from opslib.domain.states import State
from opslib.views.preflight import preflight_panel
from opslib.workflow.preflight import run_preflight
from opslib.workflow.verify import checkpoint_path


@section("preflight")
def preflight(run: Run) -> Answer:
    """Everything that the launch depends on, asked in one round trip; the unit's lock is taken first, and kept."""
    lock_unit(run)
    held = run.answers.get(LOCK)
    model_path = checkpoint_path(run.host, run.parameters.model)
    wanted = wanted_for(run.parameters, model_path, holder=held.holder if held else None)
    report = run_preflight(run.host, wanted)
    step = f" Next: {report.next_step}" if report.state is State.CRITICAL and report.next_step else ""
    for check in report.checks:
        if check.state is not State.OK:
            run.tell("line", f"{check.name}: {check.summary}", section="preflight", state=check.state)
    result = SectionResult(
        state=report.state,
        summary=f"{report.summary}.{step}" if step else report.summary,
        value=report.model_dump(mode="json"),
        cause=report.cause or None,
    )
    return result, preflight_panel(report)


def prove_preflight(run: Run) -> None:
    """An engine that serves has disproved what its preflight feared; what it says nothing about still counts."""
    feared = run.results.get("preflight")
    if feared and feared.state is State.WARNING:
        left = PreflightReport.model_validate(feared.value).after_start()
        run.supersede("preflight", feared.model_copy(update={"state": left, "cause": None}))
