"""The benchmark verb: a sweep over the host's own program, and what it says when the program fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.domain.states import State
from opslib.errors import UnexpectedAnswer
from opslib.workflow.benchmark import one_token, run_benchmark
from tests.fakes import FakeHost

PROGRAM = Path(__file__).parents[1] / "truth_server.py"


@pytest.fixture(scope="module")
def port():
    argv = [sys.executable, str(PROGRAM), json.dumps({"ttft_ms": 30, "itl_ms": 4})]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline())
        process.stdin.close()


def test_a_sweep_becomes_a_report(port):
    """Every level is measured with at least two requests a stream, told as it goes, and judged."""
    told = []
    report = run_benchmark(
        FakeHost(),
        port=port,
        model="good",
        levels=[1, 4],
        requests_per_stream=2,
        output_tokens=8,
        on_progress=told.append,
    )
    assert [(level.concurrency, level.n_requests) for level in report.levels] == [(1, 4), (4, 8)]
    assert (report.host, report.model) == ("fake", "good")
    assert report.state is State.OK
    assert 29 < report.levels[0].ttft_ms.p50 < 200
    assert [each for each in told if not isinstance(each, dict)] == list(report.levels)
    assert any(isinstance(each, dict) and each["type"] == "progress" for each in told)


def test_a_refusing_service_is_a_critical_report(port):
    """A service that answers 429 is judged, with its own words as evidence."""
    report = run_benchmark(FakeHost(), port=port, model="http-429", levels=[1], requests_per_stream=2)
    assert report.state is State.CRITICAL
    assert "too many requests" in report.checks[0].evidence[0]


def test_a_program_that_dies_is_not_a_verdict():
    """Without the load generator's last line nothing was found out."""
    host = FakeHost()
    host.programs["loadgen"] = '{"type":"progress","n_done":1}\n'
    with pytest.raises(UnexpectedAnswer, match="before its result"):
        run_benchmark(host, port=1, model="m")
    host.programs["loadgen"] = "Traceback (most recent call last):\n"
    with pytest.raises(UnexpectedAnswer, match="Traceback"):
        run_benchmark(host, port=1, model="m")


def test_one_token_is_a_real_completion(port):
    """The smoke check is ok with the token as evidence, critical with the server's words."""
    good = one_token(FakeHost(), port, "good")
    assert (good.state, good.evidence) == (State.OK, ("' ☃x'",))
    bad = one_token(FakeHost(), port, "http-429")
    assert (bad.state, bad.summary) == (State.CRITICAL, "no completion: http_429: too many requests")
