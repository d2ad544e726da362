"""The section `compare`: which run it is held against, and what worse does to a run."""

from datetime import UTC, datetime

import pytest

from opslib.app.run import Run
from opslib.app.sections.compare import compare, subject_of
from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.domain.canary_compare import judge_canary
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import SectionRecord, new_record
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
from tests.domain.test_canary import fingerprint
from tests.fakes import FakeHost


def report(factor=1.0):
    repeats = tuple({"output_throughput": v / factor, "ttft_ms.p50": 0.5 * v * factor} for v in (100.0, 101.0, 99.0))
    level = {
        "concurrency": 4, "n_requests": 8, "n_errors": 0, "duration_s": 2.0, "request_throughput": 4.0,
        "output_throughput": 100.0 / factor, "total_input_tokens": 9, "total_output_tokens": 9, "repeats": repeats,
    }  # fmt: skip
    return BenchmarkReport(state="ok", summary="", levels=(BenchmarkLevel.model_validate(level),), checks=())


@pytest.fixture
def make_run(tmp_path):
    """A run of 50-benchmark on a fake host that has measured; its record among the others of the test."""
    hour = iter(range(1, 20))

    def make(measured, runbook="50-benchmark", **given):
        started_at = datetime(2026, 11, 29, next(hour), tzinfo=UTC)
        parameters = validate_parameters(runbook, {"host": "fake", "unit": "u", **given})
        folder = RunFolder.create(tmp_path, "fake", "u", runbook, started_at)
        run = Run(
            parameters, FakeHost(), folder, new_record(runbook, parameters, FakeHost().settings, started_at=started_at)
        )
        run.answers["benchmark"] = measured
        return run

    return make


def finish(run, state=State.OK):
    """Keep the run as one that has ended, with its benchmark."""
    measured = run.answers["benchmark"]
    section = SectionRecord(
        name="benchmark", state=measured.state, value=measured.model_dump(mode="json"), started_at=run.record.started_at
    )
    run.record = run.record.with_section(section).finished(Outcome(state=state, reason=""), datetime.now(UTC))
    run.folder.write_record(run.record)
    return run.folder.path.name


def verdict(run):
    compare(run)
    return run.results["compare"]


def test_the_first_run_has_nothing_to_be_held_against(make_run):
    """Without an earlier run it is ok, and its subject is kept for the next one."""
    run = make_run(report())
    assert verdict(run).state is State.OK
    assert verdict(run).value["subject"]["load"]["concurrency_levels"] == "[1, 4, 16, 64]"


@pytest.mark.parametrize("state", [State.WARNING, State.CRITICAL])
def test_worse_is_what_the_parameter_says(make_run, state):
    """A run that is 25 % worse ends as `on_worse` says; a critical one stops the runbook."""
    first = make_run(report())
    verdict(first)
    name = finish(first)
    run = make_run(report(1.25), on_worse=state.value)
    result = verdict(run)
    assert (result.state, result.value["verdict"], result.value["baseline"]) == (state, "worse", name)
    assert run.stopped_by == ("compare" if state is State.CRITICAL else None)
    assert "worse than the last good run" in result.summary


def test_a_worse_run_is_no_baseline(make_run):
    """What was worse is passed over: the run before it stays the measure."""
    first = make_run(report())
    verdict(first)
    name = finish(first)
    slower = make_run(report(1.25))
    verdict(slower)
    finish(slower, State.WARNING)
    assert verdict(make_run(report(1.25))).value["baseline"] == name


@pytest.mark.parametrize("how", ["critical", "other load"])
def test_a_run_that_is_no_measure_is_passed_over(make_run, how):
    """A run that ended critical, and one under another load, are no baseline."""
    first = make_run(report(), **({"input_tokens": 9} if how == "other load" else {}))
    verdict(first)
    finish(first, State.CRITICAL if how == "critical" else State.OK)
    assert "baseline" not in verdict(make_run(report(1.25))).value


def test_another_engine_is_named_and_judges_nothing(make_run):
    """The last good run of the same weights with another engine is told beside, and worse is then no state."""
    first = make_run(report())
    verdict(first)
    old = {"model_digest": "w", "engine": "0.14"}
    value = {"subject": subject_of(first).model_copy(update=old).model_dump(mode="json")}
    first.record = first.record.with_section(
        SectionRecord(name="compare", state=State.OK, value=value, started_at=first.record.started_at)
    )
    finish(first)
    run = make_run(report(1.25))
    run.answers["canary"] = _canary("w", "0.15")
    result = verdict(run)
    assert (result.state, result.value["differences"]) == (State.OK, ["engine 0.14 -> 0.15"])


def _canary(digest, engine):
    return judge_canary(fingerprint(model_digest=digest, engine=engine, context={"engine": engine}), ())


def test_a_deploy_is_rolled_back_where_it_is_asked(make_run):
    """`roll_back_on` names worse: the run says what was put back, or that it changed nothing."""
    first = make_run(report(), runbook="90-deploy")
    verdict(first)
    finish(first)
    run = make_run(report(1.25), runbook="90-deploy", roll_back_on=["worse"])
    assert verdict(run).summary.endswith("nothing to roll back: this run changed nothing")
