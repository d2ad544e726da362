"""The sections of `70-fleet`: what is rolled out where, who agrees, the rollout itself, and how each host came out."""

from pathlib import Path

from opslib.app.consent import ask_consent
from opslib.app.fleet import is_practice, plan_fleet, start_practice
from opslib.app.fleet_matrix import FleetMatrix
from opslib.app.fleet_panel import FleetPanel, OnChange, OnFolder
from opslib.app.index import link_to
from opslib.app.rollout import RolloutEnd, resume_rollout, run_rollout
from opslib.app.rollout_dry import dry_rollout
from opslib.app.rollout_planning import needs_consent, with_consent
from opslib.app.rollout_record import how_to_go_on
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section, waiting_section
from opslib.domain.rollout import RolloutPlan
from opslib.domain.rollout_state import new_state
from opslib.domain.states import State
from opslib.errors import ConsentMissing, CouldNotFindOut, DryRunEnds
from opslib.records.folder import HTML_FILE
from opslib.records.rollout import RolloutFolder, read_rollout
from opslib.views.fleet import fleet_hosts_panel, fleet_plan_panel
from opslib.views.panels import answer_panel

_FREE = "no consent needed: nothing is changed, or practice hosts only"


@section("plan-rollout")
def plan_hosts(run: Run) -> Answer:
    """Which hosts have their turn when, and how carefully; contacts none of them."""
    if is_practice(run.parameters):
        start_practice()
    if run.parameters.resume:
        return _plan_to_resume(run)
    plan = plan_fleet(run.parameters)
    run.answers["plan"] = plan
    summary = f"{plan.runbook} on {len(plan.hosts)} hosts: {', '.join(plan.hosts)}"
    result = SectionResult(state=State.OK, summary=summary, value=plan.model_dump(mode="json"))
    return result, fleet_plan_panel(new_state(plan))


def _plan_to_resume(run: Run) -> Answer:
    """A rollout that was stopped or killed, as it was left."""
    folder = RolloutFolder.open(run.folder.path.parent, run.parameters.resume)
    state = folder.state()
    run.answers |= {"plan": state.plan, "resume": folder}
    summary = f"to go on with {folder.path.name}: {state.plan.runbook} on {len(state.hosts)} hosts"
    result = SectionResult(state=State.OK, summary=summary, value=state.plan.model_dump(mode="json"))
    return result, FleetMatrix(folder.path.parent, run.folder.path if run.is_headless else None).shown(state)


@waiting_section("confirm")
async def confirm_rollout(run: Run) -> Answer:
    """Whether it may begin: by a button, a parameter, or freely where nothing real is changed."""
    plan = _plan_of(run)
    if run.is_dry_run:
        raise DryRunEnds(f"dry run, nothing was changed: {_dry_words(run, plan)}")
    summary = _FREE
    if needs_consent(plan):
        agreed = await ask_consent(run, f"Roll {plan.runbook} out over {len(plan.hosts)} hosts?")
        if agreed is None:
            raise ConsentMissing("the operator did not consent", hint="run this cell again to be asked again")
        run.answers["plan"], summary = with_consent(plan), agreed
    return SectionResult(state=State.OK, summary=summary), answer_panel(run.alias, State.OK, summary)


def _dry_words(run: Run, plan: RolloutPlan) -> str:
    """What each host's run would do, by a dry run there."""
    found = dry_rollout(plan, run.folder.path.parent, tell=lambda text: run.tell("line", text, section="confirm"))
    return "; ".join(f"{host.host} {host.state.value}: {host.text}" for host in found)


@waiting_section("rollout", changes=True)
async def roll_out(run: Run) -> Answer:
    """The canary, then wave after wave, until all have passed or something forbids the next; run again, it goes on."""
    plan, panel = _plan_of(run), FleetPanel(run)
    resumed: RolloutFolder | None = run.answers.get("resume")

    def carry(on_folder: OnFolder, on_change: OnChange) -> RolloutEnd:
        def begun(path: Path) -> None:
            _leave(run, f"what was done on each host is in {path.name}; go on: opslib rollout --resume {path.name}")
            on_folder(path)

        if resumed is None:
            return run_rollout(plan, run.folder.path.parent, on_folder=begun, on_change=on_change)
        begun(resumed.path)
        return resume_rollout(resumed, on_change=on_change)

    try:
        end = await panel.watch(carry)
    finally:
        if panel.folder is not None:
            run.answers["resume"] = RolloutFolder.open(panel.folder.parent, str(panel.folder))
    _leave(run, "")
    run.answers["rollout"] = end
    hosts = {progress.host: progress.step.value for progress in end.state.hosts}
    value = {"rollout": end.folder.name, "hosts": hosts, "untouched": list(end.state.untouched)}
    outcome = end.outcome
    result = SectionResult(state=outcome.state, summary=outcome.reason, value=value, is_headline=True, is_final=False)
    notes = [f"{what}: {command}" for what, command in how_to_go_on(end.folder, end.state).items()]
    return result, answer_panel(run.alias, outcome.state, outcome.reason, notes=notes)


def _leave(run: Run, words: str) -> None:
    """What this run leaves where it ends in the middle."""
    run.record = run.record.model_copy(update={"left": words})
    run.folder.write_record(run.record)


@section("hosts")
def show_fleet(run: Run) -> Answer:
    """How each host came out, with the way to its own record, and to the one that joins them."""
    end: RolloutEnd | None = run.answers.get("rollout")
    if end is None:
        raise CouldNotFindOut("nothing was rolled out yet", hint="run the cell with roll_out(run) first")
    base = run.folder.path if run.is_headless else None
    matrix = FleetMatrix(end.folder.parent, base)
    shown = fleet_hosts_panel(read_rollout(end.folder), matrix.link, link_to(end.folder / HTML_FILE, base))
    records = {progress.host: progress.record for progress in end.state.hosts}
    return SectionResult(state=end.outcome.state, summary=end.outcome.reason, value=records, is_final=False), shown


def _plan_of(run: Run) -> RolloutPlan:
    if "plan" not in run.answers:
        raise CouldNotFindOut("nothing is planned yet", hint="run the cell with plan_hosts(run) first")
    plan: RolloutPlan = run.answers["plan"]
    return plan
