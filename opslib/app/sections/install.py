"""The unit: what would change, who agrees, and the change itself."""

from opslib.app.consent import ask_consent
from opslib.app.locking import require_lock
from opslib.app.putting_back import note_found
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section, waiting_section
from opslib.app.sections.memory import host_plan, serve_flags
from opslib.domain.facts.systemd import unit_name
from opslib.domain.lifecycle import forget_steps
from opslib.domain.parameter_parts import is_reference
from opslib.domain.plans import Plan
from opslib.domain.states import State
from opslib.domain.vllm_unit import start_timeout_words
from opslib.errors import BadParameter, ConsentMissing, DryRunEnds
from opslib.records.secrets import resolve_reference
from opslib.views.panels import answer_panel, plan_panel
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import ApplyReport, apply_plan, plan_install, unit_text_for
from opslib.workflow.lint import lint_text
from opslib.workflow.verify import checkpoint_path


@section("plan-unit")
def plan_unit(run: Run) -> Answer:
    """The steps and diffs that would install the unit for this run's parameters; takes none of them."""
    text, _ = unit_for(run)
    plan = plan_for_unit(run)
    lint = lint_text(run.host, run.parameters.unit, text)
    later = _later(run)
    run.answers["plan"] = plan
    summary = f"{len(plan.steps)} steps would change this host" if plan.steps else "nothing to change: it is installed"
    if lint.findings:
        summary = f"{summary}; {lint.summary}"
    run.tell(
        "diff",
        summary,
        section="plan-unit",
        state=lint.state,
        lines=[*plan.shown_diff.splitlines(), *later, *lint.lines],
    )
    value = {**plan_facts(plan), "lint": [finding.model_dump(mode="json") for finding in lint.findings]}
    steps = [*(step.title for step in plan.steps), *later, *lint.lines]
    result = SectionResult(state=lint.state, summary=summary, value=value)
    return result, plan_panel(run.alias, summary, plan.shown_diff, steps, state=lint.state)


def _later(run: Run) -> list[str]:
    """What the steps don't show: the unit that makes room, and how long a start is given."""
    given = run.parameters
    words = [f"stop {given.replaces}, which {given.unit} replaces, when all of this is done"] if given.replaces else []
    if given.notify_systemd:
        wait_s = given.gpu_wait_s if given.gpus else 0
        words.append(start_timeout_words(wait_s, model_bytes=host_plan(run).weights.total_bytes))
    return words


def plan_for_unit(run: Run) -> Plan:
    """What installing the unit of this run's parameters would change."""
    text, secrets = unit_for(run)
    unit, replaced = run.parameters.unit, getattr(run.parameters, "replaces", None)
    plan = plan_install(run.host, unit=unit, unit_text=text, secrets=secrets)
    if replaced and unit_name(replaced) == unit_name(unit):
        raise BadParameter(f"replaces: {replaced} can't take its own place")
    forget = forget_steps(gather_unit_status(run.host, unit))
    return plan.model_copy(update={"steps": (*plan.steps, *forget)})


def unit_for(run: Run) -> tuple[str, dict[str, str]]:
    """The text of the unit for this run's parameters, and the secrets of its environment file."""
    parameters = run.parameters
    secrets = {name: resolve_reference(value) for name, value in parameters.environment.items() if is_reference(value)}
    plain = {name: value for name, value in parameters.environment.items() if name not in secrets}
    if parameters.notify_systemd and run.host.settings.is_rehearsal:
        raise BadParameter("notify_systemd: the practice host's systemd knows no Type=notify; a real host's does")
    text = unit_text_for(
        run.host,
        unit=parameters.unit,
        model_path=checkpoint_path(run.host, parameters.model),
        flags=serve_flags(run),
        gpus=parameters.gpus,
        required_free_gib=host_plan(run).required_free_gib,
        wait_s=parameters.gpu_wait_s,
        environment=plain,
        has_secrets=bool(secrets),
        notify_stall_s=parameters.stall_s if parameters.notify_systemd else None,
        model_bytes=host_plan(run).weights.total_bytes,
    )
    return text, secrets


def plan_facts(plan: Plan) -> dict[str, object]:
    """What the record keeps of a plan: its steps and diffs, not whole files."""
    steps = [
        {
            "title": step.title,
            "diff": step.file.diff if step.file else "",
            "command": list(step.command or ()),
            "undo": step.undo,
        }
        for step in plan.steps
    ]
    return {"title": plan.title, "steps": steps}


@waiting_section("confirm")
async def confirm(run: Run) -> Answer:
    """Whether the planned change may be made: by a button, a parameter, or freely on the rehearsal host."""
    plan: Plan = run.answers["plan"]
    if run.is_dry_run:
        raise DryRunEnds(f"dry run, nothing was changed: {len(plan.steps)} steps would be taken, and a start")
    if not plan.steps:
        summary = "no consent needed: nothing would change"
    else:
        agreed = await ask_consent(run, f"Apply {len(plan.steps)} steps to {run.alias}?")
        if agreed is None:
            raise ConsentMissing("the operator did not consent", hint="run this cell again to be asked again")
        summary = agreed
    return SectionResult(state=State.OK, summary=summary), answer_panel(run.alias, State.OK, summary)


@section("install", changes=True)
def install(run: Run) -> Answer:
    """The plan applied step by step, each verified by asking the host again; names every undo."""
    require_lock(run)
    note_found(run, run.answers["plan"])
    report = apply_plan(
        run.host, run.answers["plan"], on_step=lambda step: run.tell("line", step.title, section="install")
    )
    return install_answer(run, report)


def install_answer(run: Run, report: ApplyReport, done: str = "") -> Answer:
    """What applying did, as a section's answer; `done` is its sentence where all steps held."""
    run.answers["undo"] = [*report.undo, *run.answers.get("undo", [])]  # the last change is undone first
    rows = [(step.title, step.state, step.detail) for step in report.steps]
    failed = next((step for step in report.steps if step.state is not State.OK), None)
    done = done or (f"{len(report.steps)} steps done and verified" if report.steps else "nothing had to change")
    summary = f"{failed.title}: {failed.detail}" if failed else done
    notes = [f"Undo: {command}" for command in report.undo]
    shown = answer_panel(
        run.alias, report.state, summary, rows=rows, columns=("step", "state", "verified by"), notes=notes
    )
    return SectionResult(state=report.state, summary=summary, value=report.model_dump(mode="json")), shown
