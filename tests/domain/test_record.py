"""The record of a run: JSON in and out, sections in order, exit codes."""

from datetime import UTC, datetime

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import RunRecord, SectionRecord, new_record
from opslib.domain.states import Outcome, State

NOW = datetime(2026, 11, 29, 18, 15, 3, tzinfo=UTC)


def section(name: str, state: State = State.OK) -> SectionRecord:
    return SectionRecord(name=name, state=state, summary=f"{name} is so", value={"n": 1}, started_at=NOW)


def record() -> RunRecord:
    return new_record("90-deploy", validate_parameters("90-deploy", {"unit": "u"}), started_at=NOW)


def test_record_survives_json():
    """What is written is what is read."""
    whole = record().with_section(section("verify")).finished(Outcome(state=State.OK, reason="so"), NOW)
    assert RunRecord.model_validate_json(whole.model_dump_json()) == whole


def test_section_run_again_replaces_the_earlier_one():
    """A cell run again in JupyterLab replaces its section at its place."""
    twice = record().with_section(section("a")).with_section(section("b")).with_section(section("a", State.WARNING))
    assert [(one.name, one.state) for one in twice.sections] == [("a", State.WARNING), ("b", State.OK)]


def test_exit_code_is_the_outcomes_unless_refused():
    """Exit code: its own for a refusal, the outcome's, 3 without one."""
    ended = record().finished(Outcome(state=State.CRITICAL, reason=""), NOW)
    assert record().shown_exit_code == 3
    assert ended.shown_exit_code == 2
    assert record().finished(ended.outcome, NOW, exit_code=4).shown_exit_code == 4


def test_ended_record_holds_its_exit_code():
    """Whatever the end, record.json says the exit code; only a run that goes on has none."""
    ends = [record().finished(Outcome(state=state, reason=""), NOW) for state in State]
    assert [ended.exit_code for ended in ends] == [0, 1, 2, 3]
    assert record().interrupted("by SIGINT", NOW).exit_code == 3
    assert record().exit_code is None


def test_interrupted_run_is_unknown():
    """A run ended from outside could not find out."""
    ended = record().interrupted("by SIGINT", NOW)
    assert (ended.status, ended.shown_exit_code, ended.is_ended) == ("interrupted", 3, True)


def test_new_record_names_host_and_unit():
    """The record names what the run is about."""
    assert (record().host, record().unit, record().status) == ("rehearsal", "u", "running")
