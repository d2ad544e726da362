"""Is the host fit for this launch, and is nobody else at work on the unit?"""

from typing import Any

from opslib.app.locking import LOCK, lock_unit
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.app.sections.memory import flags_for
from opslib.domain.lock import LockHolder
from opslib.domain.preflight import PreflightReport
from opslib.domain.preflight_reading import Wanted
from opslib.domain.states import State
from opslib.views.preflight import preflight_panel
from opslib.workflow.preflight import run_preflight
from opslib.workflow.verify import checkpoint_path

_MOVED = "configuration/port-in-use"  # the cause whose remedy is another port


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


def wanted_for(parameters: Any, model_path: str, *, holder: LockHolder | None = None) -> Wanted:
    """What a launch with these parameters wants of a host."""
    return Wanted(
        unit=parameters.unit,
        port=parameters.port,
        gpus=tuple(parameters.gpus),
        gpu_memory_utilization=parameters.gpu_memory_utilization,
        model_path=model_path,
        flags=tuple(flags_for(parameters)),
        own_units=tuple(filter(None, [getattr(parameters, "replaces", None)])),
        guard_wait_s=parameters.gpu_wait_s,
        may_move_port=_MOVED in parameters.apply_remedies and parameters.max_restarts > 0,
        holder=holder,
    )


def prove_preflight(run: Run) -> None:
    """An engine that serves has disproved what its preflight feared; what it says nothing about still counts."""
    feared = run.results.get("preflight")
    if feared and feared.state is State.WARNING:
        left = PreflightReport.model_validate(feared.value).after_start()
        run.supersede("preflight", feared.model_copy(update={"state": left, "cause": None}))
