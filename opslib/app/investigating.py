"""One door at 3 a.m.: which unit is it, why did it fail, and what comes next; every start with a record of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from opslib.app.binding import check_alias
from opslib.app.continuing import command_for
from opslib.app.run import Run, begin_run
from opslib.app.sections.crash import investigate
from opslib.app.sections.overall import identify
from opslib.app.sections.unit import show_unit
from opslib.app.survey import survey_hosts
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.parameters import validate_parameters
from opslib.domain.states import State
from opslib.domain.survey import EngineUnit, HostSurvey
from opslib.domain.verdict_card import VerdictCard
from opslib.errors import CouldNotFindOut, HostUnreachable, UnknownName

RUNBOOK = "40-investigate-crash"


class Investigated(NamedTuple):
    """One unit's verdict, the record that holds its evidence, and the command that goes on from there."""

    unit: str
    card: VerdictCard
    folder: Path
    next_command: str


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
    alias: str, unit: str | None, *, invocation: str = "-1", runs_dir: Path
) -> tuple[tuple[Investigated, ...], tuple[EngineUnit, ...]]:
    """The verdicts on a host's troubled units (or on the one named), the most urgent first, and all units seen.

    Nothing is changed. Raises Refused before anything is asked, HostUnreachable where nobody answers.
    """
    check_alias(alias)
    validate_parameters(RUNBOOK, {"host": alias, "invocation": invocation, **({"unit": unit} if unit else {})})
    seen: Sequence[EngineUnit] = ()
    if unit is None:
        survey = survey_hosts((alias,))[0]
        units, seen = find_troubled(survey), survey.units
    else:
        units = (unit,)
    return tuple(_investigate(alias, name, invocation, runs_dir) for name in units), tuple(seen)


def _investigate(alias: str, unit: str, invocation: str, runs_dir: Path) -> Investigated:
    """One unit, by the sections of the runbook, without its notebook."""
    with _headless(runs_dir):
        run = begin_run(RUNBOOK, {"host": alias, "unit": unit, "invocation": invocation})
    for ask in (identify, show_unit, investigate):
        ask(run)
    run.finish(run.judge())
    card = run.answers.get("card")
    if card is None:
        raise CouldNotFindOut(run.judge().reason, host=alias)
    return Investigated(unit=unit, card=card, folder=run.folder.path, next_command=_next(run, card))


def _next(run: Run, card: VerdictCard) -> str:
    """What goes on: the launch with the cause mended, or nothing."""
    if card.state is State.OK:
        return ""
    runbook = "30-launch" if card.state is State.CRITICAL else "00-survey-hosts"
    given = {"hosts": [run.alias]} if runbook == "00-survey-hosts" else {"host": run.alias, "unit": run.parameters.unit}
    return command_for(runbook, given)


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
