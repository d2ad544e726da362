"""The change that cures a cause: computed, shown, consented to, applied, and taken back where it made things worse."""

from opslib.app.consent import ask_operator
from opslib.app.locking import require_lock
from opslib.app.putting_back import note_found
from opslib.app.run import Run, SectionResult
from opslib.app.screen import Screen
from opslib.app.section import Answer
from opslib.app.sections.install import install_answer
from opslib.app.sections.memory import host_plan
from opslib.domain.diagnosis import Diagnosis
from opslib.domain.engine_figures import EngineFigures, read_figures
from opslib.domain.launch import LaunchStatus
from opslib.domain.memory_observed import observe_launch
from opslib.domain.share_remedy import propose_share_remedy
from opslib.domain.states import State
from opslib.domain.unit_change import Change, change_of, is_worse
from opslib.errors import ConsentMissing
from opslib.views.panels import answer_panel, plan_panel
from opslib.workflow.install import ApplyReport, apply_plan, read_unit_text
from opslib.workflow.investigate import Evidence
from opslib.workflow.repair import plan_change, propose_end, roll_back

ALLOWED = "allowed by the parameter apply_remedies"
_HELD = ("gpu-memory/held-by-another", "gpu-memory/free-below-budget")


def propose_change(run: Run, diagnosis: Diagnosis) -> Change | None:
    """The computed change for a verdict: the planner's for memory causes, else the first of the verdict's own."""
    if diagnosis.cause in _HELD and (change := propose_end(run.host, diagnosis.cause, run.answers["evidence"])):
        return change
    if diagnosis.cause.startswith("gpu-memory/") and run.parameters.gpus:
        return _memory_change(run, diagnosis.cause)
    return change_of(diagnosis.remedies, diagnosis.cause)


def _memory_change(run: Run, cause: str) -> Change | None:
    plan, figures = host_plan(run), _figures(run.answers["evidence"])
    remedy = plan.remedy(cause, observe_launch(figures))
    if remedy is None and plan.gpus:
        total = min(gpu.memory_usable_bytes for gpu in plan.gpus)
        remedy = propose_share_remedy(cause, plan.flags.gpu_memory_utilization, figures, gpu_total_bytes=total)
    return Change(**remedy.model_dump()) if remedy else None


def _figures(evidence: Evidence) -> EngineFigures:
    return read_figures(entry.message for entry in evidence.journal)


async def apply_remedy(run: Run, diagnosis: Diagnosis) -> Answer:
    """One remedy: proposed, consented to, applied; critical where there is none, or the budget is used up."""
    change, n_restarts = propose_change(run, diagnosis), run.answers.get("n_remedies", 0)
    if change is None:
        return no_remedy(run, diagnosis, "")
    if n_restarts >= run.parameters.max_restarts:
        return no_remedy(run, diagnosis, f"the budget of {run.parameters.max_restarts} relaunches is used up")
    is_allowed = diagnosis.cause in run.parameters.apply_remedies
    if run.is_headless and not is_allowed:
        return no_remedy(
            run, diagnosis, f"{change.words} would do: allow it by -p apply_remedies='[\"{diagnosis.cause}\"]'"
        )
    before = read_unit_text(run.host, run.parameters.unit) or ""
    plan = plan_change(run.host, run.parameters.unit, change)
    text = f"{change.words}: {change.reason}"
    run.tell("diff", text, section="remedy", lines=plan.diff.splitlines())
    Screen().paint(plan_panel(run.alias, text, plan.shown_diff, [f"Costs: {change.cost}", f"Check: {change.check}"]))
    agreed = ALLOWED if is_allowed else await ask_operator(f"Apply {change.words}?")
    if agreed is None:
        raise ConsentMissing("the operator did not consent to the remedy", hint="run this cell again to be asked again")
    require_lock(run)
    note_found(run, plan)
    report = apply_plan(run.host, plan)
    result, shown = install_answer(run, report, f"{change.words} set ({agreed})")
    _note_attempt(run, diagnosis, change, before, report)
    value = {**change.model_dump(mode="json"), "diff": plan.diff, "consent": agreed, "applied": result.value}
    return result.model_copy(update={"value": value}), shown


def _note_attempt(run: Run, diagnosis: Diagnosis, change: Change, before: str, report: ApplyReport) -> None:
    run.answers["remedy"], run.answers["n_remedies"] = change, run.answers.get("n_remedies", 0) + 1
    run.answers["unit_before"], run.answers["applied"], run.answers["cured_of"] = before, report, diagnosis
    attempt = {"cause": diagnosis.cause, "change": change.words, "outcome": "applied"}
    run.answers.setdefault("attempts", []).append(attempt)
    if change.flag == "--port":  # from now on the engine answers there
        run.parameters = run.parameters.model_copy(update={"port": int(change.value)})


def take_back_if_worse(run: Run, diagnosis: Diagnosis) -> Answer | None:
    """Rolls the last change back where the start after it got less far; None where it didn't make things worse."""
    change: Change = run.answers["remedy"]
    run.answers["attempts"][-1]["outcome"] = diagnosis.cause
    before: Diagnosis = run.answers["cured_of"]
    if change.left_over or not is_worse(before, diagnosis):
        return None
    back = roll_back(run.host, run.parameters.unit, run.answers["applied"], run.answers["unit_before"])
    run.answers["attempts"][-1]["outcome"] = f"{diagnosis.cause}; {back.summary}"
    run.tell("line", back.summary, section="relaunch")
    summary = f"{change.words} made it worse ({diagnosis.cause}); {back.summary}"
    value = {
        "diff": "",
        "why": "worse",
        "attempts": run.answers["attempts"],
        "rolled_back": back.model_dump(mode="json"),
    }
    result = SectionResult(state=State.CRITICAL, summary=summary, value=value, cause=before.cause)
    return result, answer_panel(run.alias, State.CRITICAL, summary)


def no_remedy(run: Run, diagnosis: Diagnosis, why: str) -> Answer:
    """Critical: what the verdict says, its first way out, and why it isn't taken here."""
    told = [f"{way.text} {way.command and f'({way.command})'}".strip() for way in diagnosis.remedies]
    summary = f"{diagnosis.cause}: {diagnosis.summary}{f' Next: {told[0]}' if told else ''}{f' ({why})' if why else ''}"
    status: LaunchStatus | None = run.answers.get("launch")
    if status is not None and status.crash is None:  # it hangs, or only its time was up
        summary = f"{summary} It still runs: sudo systemctl stop {run.parameters.unit}"
    if status is not None and (status.crash is None or diagnosis.cause == "unknown"):  # the watch knows more
        summary = f"{run.results['launch'].summary}. {summary}"
    cause = None if diagnosis.cause in {"none", "unknown"} else diagnosis.cause
    value = {"diff": "", "why": why, "attempts": run.answers.get("attempts", [])}
    result = SectionResult(state=State.CRITICAL, summary=summary, value=value, cause=cause)
    return result, answer_panel(run.alias, State.CRITICAL, summary, notes=told)
