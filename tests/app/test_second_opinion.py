"""The section `second-opinion`: another client's figures in one table with ours, and no harm where there are none."""

import asyncio

import pytest

from opslib.app.run import Run
from opslib.app.sections.second_opinion import second_opinion
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import State
from opslib.records.folder import RunFolder
from tests.domain.test_benchmark_formats import AT, level, report
from tests.fakes import FakeHost
from tests.workflow.test_bench_client import put_client


@pytest.fixture
def ask(tmp_path):
    """Asks for a second opinion on a host whose engine's program is `vllm`; the section's result and its text."""

    def ask_once(vllm, **given):
        parameters = validate_parameters("50-benchmark", {"host": "fake", "unit": "u", "model": "/srv/m", **given})
        host = FakeHost(vllm=vllm)
        folder = RunFolder.create(tmp_path / "runs", "fake", "u", "50-benchmark", AT)
        run = Run(parameters, host, folder, new_record("50-benchmark", parameters, host.settings, started_at=AT))
        run.answers["benchmark"] = report(level(concurrency=1))
        shown = asyncio.run(second_opinion(run))
        return run, run.results["second-opinion"], shown.text

    return ask_once


def test_nothing_is_asked_unless_named(ask):
    """By default no other client runs."""
    _, result, _ = ask("/no/such/vllm")
    assert (result.state, result.value) == (State.OK, None)


def test_both_stand_in_one_table(ask, tmp_path):
    """A row for each client and level, theirs below ours."""
    _, result, text = ask(put_client(tmp_path / "vllm"), second_client="vllm", concurrency_levels=[1])
    assert result.state is State.OK
    rows = [line.split()[:2] for line in text.splitlines() if line.startswith(("opslib", "vllm"))]
    assert rows == [["opslib", "1"], ["vllm", "1"]]


@pytest.mark.parametrize(
    ("is_broken", "client", "words"), [(True, "vllm", "no tokenizer"), (False, "guidellm", "no guid")]
)
def test_without_one_ours_stands(ask, tmp_path, is_broken, client, words):
    """A client that fails or is missing is a warning in its own words, and the run goes on."""
    run, result, text = ask(put_client(tmp_path / "vllm", is_broken=is_broken), second_client=client)
    assert (result.state, run.stopped_by) == (State.WARNING, None)
    assert words in result.summary
    assert words in text
