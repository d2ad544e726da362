"""After a crash: why, what would cure it, and whether it starts now."""

from contextlib import suppress

from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section, waiting_section
from opslib.app.sections.evidence import card_for, keep_evidence
from opslib.app.sections.launch import launch_once
from opslib.app.sections.memory_way_out import with_memory_way_out
from opslib.app.sections.remedies import apply_remedy, take_back_if_worse
from opslib.domain.diagnosis import Diagnosis
from opslib.domain.diagnosis_quote import attempts_in_words
from opslib.domain.launch import LaunchState, LaunchStatus
from opslib.domain.states import State
from opslib.domain.unit_change import Change
from opslib.domain.unit_file import parse_unit_file
from opslib.domain.unit_words import group_by_flag
from opslib.errors import OpslibError
from opslib.views.diagnosis import verdict_panel
from opslib.views.panels import answer_panel
from opslib.workflow.attempts import follow_attempts
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import read_unit_text
from opslib.workflow.investigate import Evidence, gather_evidence, judge, wait_until_ended
from opslib.workflow.launch import Start, stop_unit
from opslib.workflow.repair import with_repairs
from opslib.workflow.running import running_flags

NOTHING = "nothing crashed"


@section("investigate")
def investigate(run: Run) -> Answer:
    """Why the last start failed; its evidence goes into the record before anything is changed."""
    status: LaunchStatus | None = run.answers.get("launch")
    if status is not None and status.state is LaunchState.READY:
        return SectionResult(state=State.OK, summary=NOTHING), answer_panel(run.alias, State.OK, NOTHING)
    is_over = status is None or status.crash is not None
    return investigate_start(run, _failed_invocation(run, status), is_over=is_over)


def _failed_invocation(run: Run, status: LaunchStatus | None) -> str | None:
    if status is None:
        return resolve_invocation(run)
    return (status.crash.invocation_id if status.crash else "") or status.invocation_id or None


def investigate_start(run: Run, invocation_id: str | None, *, is_over: bool = True) -> Answer:
    """The evidence and verdict of one start; one that is over is waited for, so that its journal is whole."""
    if invocation_id and is_over:
        wait_until_ended(run.host, run.parameters.unit, invocation_id)
    evidence, diagnosis = explain(run, invocation_id)
    run.answers["evidence"], run.answers["diagnosis"] = evidence, diagnosis
    state = {"none": State.OK, "unknown": State.UNKNOWN}.get(diagnosis.cause, State.CRITICAL)
    summary = f"{diagnosis.cause} ({diagnosis.confidence} confidence): {diagnosis.summary}"
    quoted = [line.text for line in diagnosis.evidence]
    run.tell("evidence", "quoted from the failed invocation's journal", section="investigate", lines=quoted[:4])
    is_cured_later = run.record.runbook == "90-deploy"
    card = run.answers["card"] = card_for(run, evidence, diagnosis)
    value = card.model_dump(mode="json")
    cause = diagnosis.cause if state is State.CRITICAL else None
    result = SectionResult(state=state, summary=summary, value=value, is_final=not is_cured_later, cause=cause)
    return result, verdict_panel(run.alias, card)


def explain(run: Run, invocation_id: str | None) -> tuple[Evidence, Diagnosis]:
    """Why a start failed: its evidence, kept in the record, and the verdict, over all starts where systemd goes on."""
    unit, port = run.parameters.unit, _port(run)
    evidence = gather_evidence(
        run.host, unit, invocation_id, port=port, has_gpus=bool(getattr(run.parameters, "gpus", True))
    )
    keep_evidence(run, evidence)
    diagnosis = with_repairs(run.host, judge(evidence, port=port), evidence, port=port)
    diagnosis = with_memory_way_out(run, diagnosis, evidence)
    start: Start | None = run.answers.get("start")
    if start and invocation_id and _is_started_again(evidence):
        attempts = follow_attempts(run.host, start)
        told = attempts_in_words(attempts.diagnosis, has_given_up=attempts.has_given_up)
        invocations = attempts.diagnosis.invocations
        diagnosis = diagnosis.model_copy(
            update={"summary": f"{diagnosis.summary} {told}".rstrip(), "invocations": invocations}
        )
    return evidence, diagnosis


def _port(run: Run) -> int | None:
    """The port that the run is about, else the one that the unit's command line names."""
    known: int | None = getattr(run.parameters, "port", None)
    if known is not None:
        return known
    with suppress(OpslibError):
        words = group_by_flag(parse_unit_file(read_unit_text(run.host, run.parameters.unit) or "").engine_argv)
        named = next((line[1] for line in words if line[0] == "--port" and len(line) > 1), "")
        return int(named) if named.isdecimal() else None
    return None


def _is_started_again(evidence: Evidence) -> bool:
    """Whether systemd has gone on to another start within the seconds since this one failed: a fast crash loop."""
    status = evidence.status
    is_other = status is not None and status.invocation_id not in {"", evidence.invocation_id}
    return is_other or (status is not None and status.result == "start-limit-hit")


def resolve_invocation(run: Run) -> str | None:
    """The invocation that the parameter `invocation` means; None: the unit's whole last day."""
    wanted: str = run.parameters.invocation
    if len(wanted) == 32:
        return wanted
    status = gather_unit_status(run.host, run.parameters.unit)
    return status.invocation_id or None if wanted in {"", "0"} else None


@waiting_section("remedy", changes=True)
async def remedy(run: Run) -> Answer:
    """The computed change that cures the cause, shown as a diff, consented to and applied."""
    diagnosis: Diagnosis | None = run.answers.get("diagnosis")
    if diagnosis is None:
        return SectionResult(state=State.OK, summary=NOTHING), answer_panel(run.alias, State.OK, NOTHING)
    return await apply_remedy(run, diagnosis)


@waiting_section("relaunch", changes=True)
async def relaunch(run: Run) -> Answer:
    """The unit with the remedy, watched the same way; the loop goes on within `max_restarts`."""
    if "remedy" not in run.answers:
        return SectionResult(state=State.OK, summary="not needed"), answer_panel(run.alias, State.OK, "not needed")
    while True:
        stop_unit(run.host, run.parameters.unit)  # systemd may be starting it again with the old flags
        result, shown = await launch_once(run, "relaunch")
        status: LaunchStatus = run.answers["launch"]
        if status.state is LaunchState.READY:
            return _cured(run, result)
        if status.crash is None:
            return result.model_copy(update={"is_final": True}), shown
        investigate_start(run, status.crash.invocation_id)
        if taken_back := take_back_if_worse(run, run.answers["diagnosis"]):
            return taken_back
        again, shown = await apply_remedy(run, run.answers["diagnosis"])
        if again.state is not State.OK:
            return again, shown


def _cured(run: Run, result: SectionResult) -> Answer:
    """Ready: prove that the new process runs the new flag, and let the cure replace the earlier judgements."""
    change: Change = run.answers["remedy"]
    run.answers["attempts"][-1]["outcome"] = "ready"
    text = read_unit_text(run.host, run.parameters.unit) or ""
    flags = running_flags(run.host, run.parameters.unit)
    attempts = run.answers["attempts"]
    value = {**(result.value or {}), "running_flags": flags, "unit_text": text, "attempts": attempts}
    wanted = None if change.value == "-" else change.value
    if change.flag and flags.get(change.flag) != wanted:
        summary = f"ready, but the running process has {change.flag} {flags.get(change.flag)}, not {wanted}"
        failed = SectionResult(state=State.CRITICAL, summary=summary, value=value)
        return failed, answer_panel(run.alias, failed.state, summary)
    cured = f"cured by {change.words}"
    for name in ("plan-memory", "plan-unit", "launch", "investigate"):
        if name in run.results:
            run.supersede(
                name, run.results[name].model_copy(update={"state": State.OK, "summary": cured, "is_headline": False})
            )
    summary = f"{result.summary}; {cured}"
    ready = result.model_copy(update={"summary": summary, "value": value})
    return ready, answer_panel(run.alias, ready.state, summary)
