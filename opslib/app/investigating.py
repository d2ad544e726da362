"""One door at 3 a.m.: which unit is it, why did it fail, and what comes next; every start with a record of its own."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from opslib.app.binding import check_alias
from opslib.app.completing import complete_record
from opslib.app.continuing import command_for
from opslib.app.run import Run, begin_run
from opslib.app.sections.crash import investigate
from opslib.app.sections.overall import identify
from opslib.app.sections.unit import show_unit
from opslib.app.survey import survey_hosts
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.parameters import validate_parameters
from opslib.domain.repair import changed_unit
from opslib.domain.states import State
from opslib.domain.survey import EngineUnit, HostSurvey
from opslib.domain.unit_file import parse_unit_file
from opslib.domain.unit_words import group_by_flag
from opslib.domain.verdict_card import VerdictCard
from opslib.errors import CouldNotFindOut, HostUnreachable, OpslibError, UnknownName
from opslib.workflow.investigate import Evidence

RUNBOOK = "40-investigate-crash"
_PARAMETERS = {  # of a launch, by the engine flag that they set
    "--port": "port",
    "--served-model-name": "served_model_name",
    "--tensor-parallel-size": "tensor_parallel_size",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
}


class Investigated(NamedTuple):
    """One unit's verdict, the record that holds its evidence, and the command that goes on from there."""

    unit: str
    card: VerdictCard
    folder: Path
    next_command: str
    now: str = ""  # how the unit is now, where it answers in a later start than the one that failed


def find_troubled(survey: HostSurvey) -> tuple[str, ...]:
    """The engine units that failed, restart, or were restarted, the worst first; raises where nobody can say.

    Raises HostUnreachable for a host that didn't answer, UnknownName where it has no engine unit at all.
    """
    if not survey.is_reached:
        raise HostUnreachable(survey.summary, host=survey.host, hint=survey.next_step)
    if not survey.units:
        raise UnknownName("no engine unit was found", host=survey.host, hint="name the unit")
    ranked = sorted((unit for unit in survey.units if _rank(unit.status)), key=lambda unit: -_rank(unit.status))
    return tuple(unit.unit for unit in ranked)


def _rank(status: UnitStatus) -> int:
    """How urgent a unit is: failed 4, on its way to another start 3, restarted 2, ended badly 1, fine 0."""
    if status.active_state == "failed":
        return 4
    if status.active_state == "activating" and status.sub_state == "auto-restart":
        return 3
    if status.n_restarts:
        return 2
    return int(status.result not in {"", "success"})


def investigate_host(
    alias: str, unit: str | None, *, invocation: str = "-1", ticket: str = "", runs_dir: Path
) -> tuple[tuple[Investigated, ...], tuple[EngineUnit, ...]]:
    """The verdicts on a host's troubled units (or on the one named), the most urgent first, and all units seen.

    Nothing is changed. Raises Refused before anything is asked, HostUnreachable where nobody answers.
    """
    check_alias(alias)
    given = {"host": alias, "invocation": invocation, "ticket": ticket}
    validate_parameters(RUNBOOK, {**given, **({"unit": unit} if unit else {})})
    seen: Sequence[EngineUnit] = ()
    if unit is None:
        survey = survey_hosts((alias,))[0]
        units, seen = find_troubled(survey), survey.units
    else:
        units = (unit,)
    return tuple(_investigate({**given, "unit": name}, runs_dir) for name in units), tuple(seen)


def _investigate(given: Mapping[str, str], runs_dir: Path) -> Investigated:
    """One unit, by the sections of the runbook, without its notebook."""
    with _headless(runs_dir):
        run = begin_run(RUNBOOK, given)
        for ask in (identify, show_unit, investigate):
            ask(run)
        run.finish(run.judge())
    complete_record(run.folder, lambda text: run.tell("line", text, section="record"))
    card = run.answers.get("card")
    if card is None:
        raise CouldNotFindOut(run.judge().reason, host=run.alias)
    now = _serves_now(run.answers["evidence"])
    following = f"opslib status {run.alias} {run.parameters.unit}" if now else _next(run, card)
    return Investigated(run.parameters.unit, card, run.folder.path, following, now)


def _serves_now(evidence: Evidence) -> str:
    """How the unit is, where it answers in another start than the one that failed: that one's remedy isn't for it."""
    for unit in evidence.survey.units if evidence.survey and evidence.invocation_id else ():
        if unit.health_status_code == 200 and unit.status.invocation_id not in {"", evidence.invocation_id}:
            return f"{unit.summary}, in a later start: this is why an earlier one failed"
    return ""


def _next(run: Run, card: VerdictCard) -> str:
    """What goes on: the launch with the unit's own flags and the computed change, or a look at the whole host."""
    if card.state is State.OK:
        return ""
    if card.state is not State.CRITICAL:
        return command_for("00-survey-hosts", {"hosts": [run.alias]})
    given: dict[str, Any] = {"host": run.alias, "unit": run.parameters.unit, "ticket": run.parameters.ticket}
    snapshot = run.answers["evidence"].snapshot
    try:
        known = {**given, **_launch_parameters(snapshot.unit_text, card)}
        validate_parameters("30-launch", known)
    except (OpslibError, ValueError):
        known = given
    return command_for("30-launch", known)


def _launch_parameters(unit_text: str, card: VerdictCard) -> dict[str, Any]:
    """The parameters of a launch that would install the unit as it is, with the first computed change in it."""
    computed = next((way for way in card.diagnosis.remedies if way.flag and way.diff), None)
    unit = parse_unit_file((changed_unit(computed, unit_text) if computed else None) or unit_text)
    model, *words = unit.serve_arguments
    given: dict[str, Any] = {"model": model, "extra_args": []}
    for flag, *values in group_by_flag(words):
        name = _PARAMETERS.get(flag)
        if name is None:
            given["extra_args"] += [flag, *values]
        else:
            given[name] = _number(" ".join(values)) if name != "served_model_name" else " ".join(values)
    gpus = unit.environment.get("CUDA_VISIBLE_DEVICES", "")
    given["gpus"] = [int(word) for word in gpus.split(",") if word.strip().isdecimal()]
    return given


def _number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)


@contextmanager
def _headless(runs_dir: Path) -> Iterator[None]:
    """The record goes below `runs_dir`, and nobody is there to click."""
    before = {name: os.environ.get(name) for name in ("OPSLIB_HEADLESS", "OPSLIB_RUNS")}
    os.environ.update(OPSLIB_HEADLESS="1", OPSLIB_RUNS=str(runs_dir))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
