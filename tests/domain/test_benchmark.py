"""Benchmark figures: exact percentiles, honest counts, and a state that only the service makes."""

import pytest

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_judge import find_knee, judge_benchmark
from opslib.domain.benchmark_samples import LevelRun, percentiles, summarize
from opslib.domain.states import State

SERVER = {
    "prefix_cache_hits": 0.0,
    "prefix_cache_queries": 1000.0,
    "ttft_sum_s": 0.4,
    "ttft_count": 2.0,
    "n_preemptions": 0.0,
}


def request(**changes):
    line = {
        "sent_at_s": 0.0,
        "ttft_ms": 200.0,
        "e2e_latency_ms": 500.0,
        "itl_ms": [100.0, 200.0],
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "error": None,
    }
    return {**line, **changes}


def failed(kind="http_429"):
    return request(error=kind, ttft_ms=None, e2e_latency_ms=None, itl_ms=[], prompt_tokens=None, completion_tokens=None)


def level_of(requests, concurrency=4, **changes):
    line = {
        "concurrency": concurrency, "n_requests": len(requests), "duration_s": 2.0, "error_messages": {}, "server": SERVER,
        "client_cpu_share": 0.1, "loop_lag_p99_ms": 1.0,
    }  # fmt: skip
    return summarize([LevelRun({**line, **changes}, requests)])


def sweep(*throughputs, ttft=lambda n: 100.0 + n):
    return [
        level_of([request(ttft_ms=ttft(n))], concurrency=2**n).model_copy(update={"output_throughput": value})
        for n, value in enumerate(throughputs)
    ]


def test_figures_are_those_of_the_samples():
    """Throughput counts usage tokens over the duration; tpot is (e2e - ttft) / (tokens - 1)."""
    level = level_of([request(), request(ttft_ms=300.0)])
    assert (level.request_throughput, level.output_throughput) == (1.0, 3.0)
    assert (level.total_input_tokens, level.total_output_tokens, level.chunks_per_token) == (20, 6, 1.0)
    assert level.ttft_ms.mean == level.ttft_ms.p50 == 250.0
    assert level.tpot_ms.p50 == 125.0
    assert level.itl_ms.mean == 150.0
    assert level.server_ttft_mean_ms == 200.0
    assert level.is_valid


def test_percentiles_keep_the_tail():
    """One stall among a hundred gaps is in p99 and in nothing averaged."""
    figure = percentiles([10.0] * 98 + [500.0] * 2)
    assert (figure.p50, figure.p90, figure.p99) == (10.0, 10.0, 500.0)
    assert percentiles([None]) is None


def test_several_tokens_in_a_chunk_are_counted_as_the_server_does():
    """Tokens come from usage, never from chunks; the ratio is told beside."""
    level = level_of([request(completion_tokens=9)])
    assert (level.total_output_tokens, level.chunks_per_token, level.counted_in) == (9, pytest.approx(1 / 3), "tokens")


def test_without_usage_it_says_chunks():
    """Where the server counts no tokens, chunks are counted and called chunks."""
    level = level_of([request(completion_tokens=None)])
    assert (level.total_output_tokens, level.counted_in) == (3, "chunks")
    assert "chunks/s" in judge_benchmark([level]).summary


def test_errors_are_counted_by_class_and_make_no_latency():
    """A failed request is in no percentile; one never sent counts as failed."""
    level = level_of([request(), failed(), failed("cut")], n_requests=4)
    assert dict(level.errors) == {"cut": 1, "http_429": 1, "not_sent": 1}
    assert (level.n_errors, level.is_valid, level.ttft_ms.p99) == (3, False, 200.0)


def test_a_good_sweep_is_ok_and_says_its_best_figure():
    """No errors, tokens, no cache hits: ok, with the best level in one sentence."""
    report = judge_benchmark(sweep(100.0, 190.0, 350.0), host="rehearsal", n_planned=3)
    assert (report.state, report.knee_concurrency) == (State.OK, None)
    assert report.summary == "350 tokens/s at concurrency 4, ttft p99 102 ms; not full yet"


@pytest.mark.parametrize(
    ("levels", "state", "check"),
    [
        ([[failed()] * 4, [request()] * 4], State.CRITICAL, "errors"),
        ([[request()] * 4, [failed()] * 4], State.WARNING, "errors"),
        ([[request()] * 199 + [failed()], [request()] * 4], State.OK, None),
        ([[request(ttft_ms=None, e2e_latency_ms=None, itl_ms=[], completion_tokens=0)] * 2], State.CRITICAL, "tokens"),
    ],
    ids=["at the lowest level", "at a higher level only", "half a percent", "no tokens"],
)
def test_what_the_service_did_makes_the_state(levels, state, check):
    """More than 1 % errors at the lowest level is critical, only at higher ones a warning; no tokens is critical."""
    report = judge_benchmark([level_of(requests, concurrency=n + 1) for n, requests in enumerate(levels)])
    assert report.state is state
    assert [each.name for each in report.checks if each.state is not State.OK] == ([check] if check else [])


def test_a_late_client_marks_the_level_and_not_the_service():
    """A loop lag over 5 ms or CPU over 60 % makes the level not valid, says why, and the state stays ok."""
    level = level_of([request()], loop_lag_p99_ms=12.0, client_cpu_share=0.7)
    report = judge_benchmark([level])
    assert (report.state, level.is_valid) == (State.OK, False)
    assert level.why_invalid == ("client took 70% of a core", "client woke 12.0 ms late (p99)")
    assert report.checks[-1].evidence


def test_a_client_that_measured_itself_is_a_warning():
    """Past the coarse bounds at more than half of the levels the figures are the client's own."""
    levels = [level_of([request()], concurrency=n, client_cpu_share=0.95) for n in (1, 2)]
    assert judge_benchmark(levels).state is State.WARNING
    assert judge_benchmark([*levels, level_of([request()]), level_of([request()])]).state is State.OK


def test_prefix_cache_hits_are_flagged():
    """More than 1 % hits on prompts that are all new means that the figures are too good."""
    level = level_of([request()], server={**SERVER, "prefix_cache_hits": 50.0})
    assert judge_benchmark([level]).state is State.WARNING
    assert level.why_invalid == ("5% prefix-cache hits",)


def test_levels_left_out_are_told():
    """A sweep that the deadline cut short is a warning; one without any level is unknown."""
    assert judge_benchmark([level_of([request()])], n_planned=4).state is State.WARNING
    assert judge_benchmark([], n_planned=4).state is State.UNKNOWN


def test_the_knee_is_where_throughput_stops_growing():
    """The knee is the last level before the gain falls below 5 % while ttft grows."""
    assert find_knee(sweep(100, 190, 350, 360, 355)) == 4
    assert find_knee(sweep(100, 190, 350)) is None
    assert find_knee(sweep(100, 101, ttft=lambda n: 100.0 - n)) is None


def test_a_report_survives_json():
    """A report goes into the record as JSON and comes back the same."""
    report = judge_benchmark([level_of([request()])])
    assert type(report).model_validate_json(report.model_dump_json()) == report
    assert BenchmarkLevel.model_validate_json(report.levels[0].model_dump_json()) == report.levels[0]
