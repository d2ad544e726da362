"""Start the unit and watch it."""

from opslib.app.locking import require_lock
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, waiting_section
from opslib.app.sections.preflight import prove_preflight
from opslib.app.watching import LaunchPanel, watch
from opslib.domain.launch_status import LaunchState, LaunchStatus
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.views.panels import answer_panel
from opslib.workflow.launch import start_unit
from opslib.workflow.snapshot import take_snapshot


@waiting_section("launch", changes=True)
async def launch(run: Run) -> Answer:
    """Start the unit and watch both signals until it is ready, has crashed or failed, or the time is up."""
    return await launch_once(run, "launch")


async def launch_once(run: Run, section: str) -> Answer:
    """One start, watched to its end; a crash is critical, but may still be cured by a remedy."""
    require_lock(run)
    run.tell("line", f"starting {run.parameters.unit}", section=section)
    start = start_unit(run.host, run.parameters.unit)
    status, panel = await watch(run, section, start)
    run.answers["start"], run.answers["launch"] = start, status
    if status.state is LaunchState.READY:
        _prove_plan(run)
        prove_preflight(run)
    facts = launch_facts(status, panel)
    if status.state is LaunchState.READY:  # what a later crash is compared with
        snapshot = take_snapshot(run.host, run.parameters.unit, has_gpus=bool(run.parameters.gpus))
        facts["snapshot"] = snapshot.model_dump(mode="json")
    result = SectionResult(
        state=status.judgement,
        summary=_summary(run, status),
        value=facts,
        is_headline=status.state is LaunchState.READY,
        is_final=not _may_be_cured(run, status),
        exit_code=CouldNotFindOut.exit_code if status.state is LaunchState.ABORTED else None,
    )
    return result, answer_panel(run.alias, result.state, result.summary)  # the last word, below all that was shown


def _prove_plan(run: Run) -> None:
    """A plan that was tight, or predicted a late failure, is overruled once the engine has started with it."""
    planned = run.results.get("plan-memory")
    if planned and planned.state is not State.OK:
        run.supersede("plan-memory", planned.model_copy(update={"state": State.OK, "cause": None}))


def launch_facts(status: LaunchStatus, panel: LaunchPanel) -> dict[str, object]:
    """What the record keeps of a launch: its end, a crash and when it was seen, the engine's figures, the timeline."""
    crash = status.crash
    delay_s = (crash.seen_at - crash.died_at).total_seconds() if crash and crash.died_at else None
    return {
        "state": status.state.value,
        "reason": status.reason,
        "elapsed_s": round(status.elapsed_s, 2),
        "invocation_id": status.invocation_id,
        "n_restarts": status.n_restarts,
        "n_links_lost": status.n_links_lost,
        "unheard_s": round(status.unheard_s, 2),
        "crash": crash.model_dump(mode="json") if crash else None,
        "crash_seen_after_s": delay_s,
        "engine": panel.figures.model_dump(mode="json", exclude_defaults=True),
        "phases": [span.model_dump(mode="json", exclude_none=True) for span in status.phases],
        "timeline": [{"at_s": round(mark.at_s, 2), "seen": mark.text} for mark in panel.timeline],
    }


def _summary(run: Run, status: LaunchStatus) -> str:
    unit = run.parameters.unit
    if status.state is LaunchState.READY:
        return f"{unit} is ready: {status.reason}{_lost(status)}"
    if status.state is LaunchState.TIMED_OUT:
        return f"{unit} is not ready after {status.elapsed_s:.0f} s: {status.reason}"
    crash = status.crash
    if crash and crash.died_at:
        delay_s = (crash.seen_at - crash.died_at).total_seconds()
        return f"{unit} {status.state.value} after {status.elapsed_s:.0f} s, seen {delay_s:.1f} s later: {crash.text}"
    return f"{unit} {status.state.value}: {status.reason}"


def _lost(status: LaunchStatus) -> str:
    """What is said of a link that failed meanwhile."""
    if not status.n_links_lost:
        return ""
    times = "once" if status.n_links_lost == 1 else f"{status.n_links_lost} times"
    for_s = f"for {status.unheard_s:.0f} s"
    return f"; the link was lost {times}, {for_s}, and the journal was read on from where it was"


def _may_be_cured(run: Run, status: LaunchStatus) -> bool:
    """Whether the runbook goes on to ask why, and what would cure it; a start that only hangs has a cause as well."""
    return status.state is not LaunchState.READY and run.record.runbook == "90-deploy"
