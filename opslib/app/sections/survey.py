"""The sections of `00-survey-hosts`: all hosts asked at once, then one question after the other about the answers."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opslib.app.binding import is_rehearsal_alias
from opslib.app.catalogue import default_runs_dir
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.app.survey import chosen_aliases, survey_hosts
from opslib.domain.parameters import SurveyHostsParameters, validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import State, worst
from opslib.domain.survey import HostSurvey
from opslib.errors import CouldNotFindOut
from opslib.records.folder import RunFolder
from opslib.views.shown import Shown
from opslib.views.survey import (
    answered_table,
    attention,
    checks_table,
    gpus_table,
    units_sentence,
    units_table,
)
from opslib.views.survey_matrix import hosts_sentence, hosts_table
from opslib.views.theme import note

RUNBOOK = "00-survey-hosts"
ONLY_PRACTICE = "only the rehearsal host was asked; -p 'hosts=[all]' asks every host of hosts.toml"


class SurveyRun(Run):
    """A run about several hosts, each opened for its survey only."""

    def __init__(self, parameters: SurveyHostsParameters, folder: RunFolder, record: Any) -> None:
        nobody: Any = None  # there is no one host that the run is about
        super().__init__(parameters, nobody, folder, record)

    @property
    def alias(self) -> str:
        """The hosts that outputs are about."""
        return str(self.parameters.recorded_host)


def begin_survey(namespace: Mapping[str, Any]) -> SurveyRun:
    """Start a run of `00-survey-hosts` with the parameters that stand in a notebook's `namespace` (pass `globals()`).

    Raises Refused (BadParameter, UnknownName) before any host is contacted.
    """
    started_at = datetime.now(UTC)
    given = {"hosts": namespace["hosts"]} if "hosts" in namespace else {}
    parameters = validate_parameters(RUNBOOK, given)
    assert isinstance(parameters, SurveyHostsParameters)
    chosen_aliases(parameters.aliases)
    headless_folder = os.environ.get("OPSLIB_RUN_DIR")
    if headless_folder:
        folder = RunFolder.open(Path(headless_folder))
    else:
        folder = RunFolder.create(
            default_runs_dir(), parameters.recorded_host, parameters.recorded_unit, RUNBOOK, started_at
        )
    record = new_record(RUNBOOK, parameters, started_at=started_at)
    folder.write_record(record)
    return SurveyRun(parameters, folder, record)


@section("identify")
def identify_hosts(run: Run) -> Answer:
    """Who answers under each alias; everything else is asked in the same round trip."""
    surveys = survey_hosts(chosen_aliases(run.parameters.aliases), on_survey=lambda survey: _tell(run, survey))
    run.answers["surveys"] = surveys
    answered = {survey.host: survey.who for survey in surveys if survey.is_reached}
    run.record = run.record.model_copy(update={"answered": answered})
    n_silent = len(surveys) - len(answered)
    summary = _said(run, f"{len(answered)} of {len(surveys)} hosts answered")
    shown = answered_table(surveys)
    if _is_practice(run):
        shown = Shown(shown.html + note(ONLY_PRACTICE), f"{shown.text}\n\n{ONLY_PRACTICE}")
    return SectionResult(state=State.UNKNOWN if n_silent else State.OK, summary=summary, value=answered), shown


@section("hosts")
def show_hosts(run: Run) -> Answer:
    """How each host is: one row, with its unit, GPUs, versions, and what was done to it last."""
    state = worst(survey.state for survey in surveys_of(run))
    value = [survey.model_dump(mode="json") for survey in surveys_of(run)]
    return _answer(state, hosts_sentence(surveys_of(run)), value, hosts_table(surveys_of(run)))


@section("units")
def show_units(run: Run) -> Answer:
    """What the engines' units really are, whatever "active (running)" says."""
    units = [(survey.host, unit) for survey in surveys_of(run) for unit in survey.units]
    state, summary = units_sentence(surveys_of(run))
    value = [
        {"host": host, "unit": unit.unit, "state": unit.state.value, "summary": unit.summary} for host, unit in units
    ]
    return _answer(state, summary, value, units_table(surveys_of(run)))


@section("gpus")
def show_gpus(run: Run) -> Answer:
    """Who holds the GPUs' memory."""
    checks = [check for survey in surveys_of(run) for check in survey.checks if check.name == "gpus"]
    value = [
        holder.model_dump(mode="json") | {"host": survey.host}
        for survey in surveys_of(run)
        for holder in survey.holders
    ]
    n_gpus = sum(len(survey.gpus) for survey in surveys_of(run))
    return _answer(worst(check.state for check in checks), f"{n_gpus} GPUs", value, gpus_table(surveys_of(run)))


@section("attention")
def show_attention(run: Run) -> Answer:
    """Everything that isn't ok, the worst first, with what to do."""
    found = [
        {"host": survey.host, **check.model_dump(mode="json")}
        for survey in surveys_of(run)
        for check in survey.checks
        if check.state is not State.OK
    ]
    state = worst(survey.state for survey in surveys_of(run))
    return _answer(state, _said(run, hosts_sentence(surveys_of(run))), found, attention(surveys_of(run)))


def surveys_of(run: Run) -> Sequence[HostSurvey]:
    """What each host's survey came to, in the order of the parameters; raises CouldNotFindOut before it was asked."""
    if "surveys" not in run.answers:
        raise CouldNotFindOut("no host was asked yet", hint="run the cell with identify_hosts(run) first")
    surveys: Sequence[HostSurvey] = run.answers["surveys"]
    return surveys


def all_checks(run: Run) -> Shown:
    """Every topic of every host, as it was judged."""
    panels = [checks_table(survey) for survey in surveys_of(run)]
    return Shown("".join(panel.html for panel in panels), "\n\n".join(panel.text for panel in panels))


def _is_practice(run: Run) -> bool:
    return all(is_rehearsal_alias(survey.host) for survey in surveys_of(run))


def _said(run: Run, sentence: str) -> str:
    """The sentence, and where nothing real was asked that too: a timer's record must not look like the hosts' own."""
    return f"{sentence}; {ONLY_PRACTICE}" if _is_practice(run) else sentence


def _answer(state: State, summary: str, value: Any, shown: Shown) -> Answer:
    """A section about the hosts; nothing here stops a survey, however bad it is."""
    return SectionResult(state=state, summary=summary, value=value, is_final=False), shown


def _tell(run: Run, survey: HostSurvey) -> None:
    run.tell("line", f"{survey.host}: {survey.summary}", section="identify", state=survey.state)
