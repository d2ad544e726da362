"""The benchmark verb: a sweep over the host's own program, and what it says when the program fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.domain.load import LevelShape, LoadSpec, SweepBounds, closed_levels
from opslib.domain.states import State
from opslib.errors import BadParameter, UnexpectedAnswer
from opslib.workflow.benchmark import engine_python, one_token, run_benchmark
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
    assert 29 < report.levels[0].ttft_ms.p50 < 1000
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


def test_repeats_of_a_level_are_pooled(port):
    """Two repeats of two levels make two levels with all their samples; each run is told as it ends."""
    told = []
    load = LoadSpec(levels=closed_levels([1, 2]), repeats=2, output_tokens=4, warmup=0)
    report = run_benchmark(FakeHost(), port=port, model="good", load=load, on_progress=told.append)
    assert [(level.n_requests, len(level.repeats)) for level in report.levels] == [(8, 2), (8, 2)]
    assert len([each for each in told if not isinstance(each, dict)]) == 4
    assert (report.n_repeats, report.state) == (2, State.OK)


def test_a_sweep_says_where_it_saturates(port):
    """A sweep that passed its bound is whole: no level is missing, the reason and the SLO are in the report."""
    load = LoadSpec(sweep=SweepBounds(max_concurrency=8, ttft_ms=1.0), output_tokens=4, warmup=0)
    report = run_benchmark(FakeHost(), port=port, model="good", load=load)
    assert [level.concurrency for level in report.levels] == [1]
    assert "ttft_ms p99" in report.stop_reason
    assert (report.saturation_concurrency, report.slo.ttft_ms) == (None, 1.0)
    assert next(check.state for check in report.checks if check.name == "levels") is State.OK
    assert report.levels[0].request_goodput == 0.0


def test_an_open_loop_is_a_level_too(port):
    """A rate of requests is named as such, and both starts are told; a URL is as good as a port."""
    shape = LevelShape(arrival="poisson", rate=40, n_requests=20)
    report = run_benchmark(
        FakeHost(), url=f"http://127.0.0.1:{port}", load=LoadSpec(levels=(shape,), output_tokens=4, warmup=0)
    )
    assert report.levels[0].name == "40 requests/s"
    assert report.levels[0].ttft_ms.mean >= report.levels[0].ttft_sent_ms.mean
    assert "40 requests/s" in report.summary


def test_a_key_that_is_not_there_is_a_refusal(port):
    """Nothing is sent without the key that was asked for."""
    with pytest.raises(BadParameter, match="no API key behind env:NO_SUCH_KEY"):
        run_benchmark(FakeHost(), port=port, api_key="env:NO_SUCH_KEY")


@pytest.mark.parametrize(
    ("content", "python"),
    [
        (b"#!/opt/vllm/bin/python3.12\nimport sys\n", "/opt/vllm/bin/python3.12"),
        (b"#!/usr/bin/env python3\n", ""),
        (b"#!/bin/sh\n", ""),
        (b"\x7fELF", ""),
        (None, ""),
    ],
)
def test_the_engines_own_python_is_in_its_first_line(content, python):
    """A console script names the Python of its environment; anything else leaves the host's."""
    host = FakeHost(vllm="/opt/vllm/bin/vllm")
    if content is not None:
        host.files["/opt/vllm/bin/vllm"] = content
    assert engine_python(host) == python
