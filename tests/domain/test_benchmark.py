"""Benchmark figures: exact percentiles, honest counts, and a state that only the service makes."""

import numpy as np
import pytest

from opslib.domain.benchmark import BenchmarkLevel, Slo
from opslib.domain.benchmark_judge import find_knee, judge_benchmark
from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.domain.benchmark_stats import bootstrap, histogram, percentiles
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


def line_of(requests, concurrency=4, **changes):
    line = {
        "concurrency": concurrency, "n_requests": len(requests), "duration_s": 2.0, "error_messages": {}, "server": SERVER,
        "client_cpu_share": 0.1, "loop_lag_p99_ms": 1.0,
    }  # fmt: skip
    return {**line, **changes}


def level_of(requests, concurrency=4, **changes):
    return summarize([LevelRun(line_of(requests, concurrency, **changes), requests)])


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


def test_goodput_counts_what_keeps_every_bound():
    """A request that misses one bound of the SLO is served but not good."""
    requests = [request(), request(ttft_ms=900.0, e2e_latency_ms=1200.0), request(e2e_latency_ms=5000.0)]
    level = summarize([LevelRun(line_of(requests), requests)], slo=Slo(ttft_ms=500.0, e2e_latency_ms=1000.0))
    assert (level.request_throughput, level.request_goodput) == (1.5, 0.5)
    assert level_of(requests).request_goodput is None


def test_throughput_is_told_per_user_and_per_gpu():
    """Per user is the mean of 1000 / tpot_ms, per GPU the output over those that serve."""
    requests = [request()] * 4
    level = summarize([LevelRun(line_of(requests), requests)], n_gpus=4)
    assert level.output_throughput_per_user == pytest.approx(1000 / 150)
    assert level.output_throughput_per_gpu == pytest.approx(level.output_throughput / 4)
    assert level.input_throughput == 20.0


def test_repeats_are_one_level_with_the_noise_between_them():
    """All samples are pooled, each run's own figures are kept, throughput gets an interval only by repeats."""
    runs = [
        LevelRun(line_of([request(ttft_ms=ttft)] * 4), [request(ttft_ms=ttft)] * 4) for ttft in (100.0, 200.0, 300.0)
    ]
    level = summarize(runs, seed=1)
    assert (level.n_requests, level.duration_s, level.ttft_ms.p50) == (12, 6.0, 200.0)
    assert [repeat["ttft_ms.p50"] for repeat in level.repeats] == [100.0, 200.0, 300.0]
    assert level.intervals["ttft_ms.mean"].low < 200.0 < level.intervals["ttft_ms.mean"].high
    assert level.intervals["output_throughput"].low == level.intervals["output_throughput"].high == 6.0
    assert summarize(runs, seed=1) == level
    once = summarize(runs[:1])
    assert (once.repeats, "output_throughput" in once.intervals) == ((), False)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """Of 200 samples of 60 draws each, the 95 % interval of the mean holds the true mean in nine of ten or more."""
    rng = np.random.default_rng(5)
    held = 0
    for seed in range(200):
        interval = bootstrap(rng.exponential(100.0, 60), "mean", seed)
        held += interval.low <= 100.0 <= interval.high
    assert 176 <= held <= 198


def test_an_open_loop_tells_both_starts():
    """Latencies count from the intended start; from the real one they are told beside it, with the delay."""
    requests = [request(intended_at_s=0.0, sent_at_s=0.05), request(intended_at_s=1.0, sent_at_s=1.15)]
    level = level_of(requests, request_rate=1.0, arrival="constant")
    assert (level.ttft_ms.mean, level.ttft_sent_ms.mean, level.send_delay_ms.mean) == (200.0, 100.0, 100.0)
    assert (level.name, level.steady_output_throughput) == ("1 requests/s", None)


def test_the_steady_part_leaves_out_start_and_end():
    """Where one of two streams is alone for a while, throughput with both is told beside the whole."""
    both = [request(sent_at_s=0.0), request(sent_at_s=0.0, e2e_latency_ms=1500.0, itl_ms=[100.0, 1200.0])]
    level = level_of([*both, request(sent_at_s=0.5)], concurrency=2)
    assert level.output_throughput == 4.5
    assert level.steady_output_throughput == pytest.approx(3 / 0.5)  # from the first's end to the third's


def test_histograms_hold_every_sample():
    """Forty bins of equal ratio, from the least sample to the largest."""
    found = histogram([1.0, 2.0, 4.0, 1000.0])
    assert (len(found.edges), sum(found.counts), found.edges[0], found.edges[-1]) == (41, 4, 1.0, 1000.0)
    assert histogram([]) is None
    assert sum(histogram([3.0, 3.0]).counts) == 2


def test_server_and_gpus_are_told_with_the_level():
    """Queue time is a mean over the level's requests, gauges their largest, GPUs what they did, [N/A] unknown."""
    gpu = {"at_s": 0.5, "index": 1, "memory_used_bytes": 5, "utilization_percent": 90.0, "power_w": None}
    gpus = [{**gpu, "sm_clock_mhz": 1800.0, "throttle_reasons": ["sw_power_cap"]}, {**gpu, "sm_clock_mhz": 1200.0}]
    server = {**SERVER, "queue_sum_s": 0.5, "queue_count": 2.0}
    gauges = [{"at_s": 0.1, "running": 3.0, "waiting": 1.0, "kv_cache_usage": 0.5}, {"at_s": 1.1, "running": 4.0}]
    level = level_of([request()], server=server, server_samples=gauges, gpu_samples=gpus)
    assert (level.server_queue_time_mean_ms, level.running_max, level.kv_cache_usage_max) == (250.0, 4.0, 0.5)
    (load,) = level.gpus
    assert (load.index, load.utilization_mean_percent, load.power_mean_w) == (1, 90.0, None)
    assert (load.sm_clock_mean_mhz, load.sm_clock_min_mhz, load.throttle_reasons) == (1500.0, 1200.0, ("sw_power_cap",))


def test_levels_at_which_the_client_was_measured_give_no_figure():
    """The best figure is one of a level whose client kept up; where none did, the report says that and no figure."""
    good = level_of([request()], concurrency=1)
    late = level_of([request()] * 9, concurrency=8, client_cpu_share=0.95)
    assert late.is_client_bound
    assert "at concurrency 1," in judge_benchmark([good, late]).summary
    assert "tokens/s" not in judge_benchmark([late]).summary
    assert "the client was the bottleneck" in judge_benchmark([late]).summary


def test_shared_prefixes_may_hit_the_cache():
    """Hits on prompts that were meant to share a beginning flatter nothing."""
    level = level_of([request()], server={**SERVER, "prefix_cache_hits": 500.0})
    assert judge_benchmark([level], has_shared_prefixes=True).state is State.OK


def test_what_the_service_made_of_a_request_is_told_and_no_fault():
    """Shorter answers, refused fields and chats instead of completions are evidence in a report that stays ok."""
    made = {"n_asked_tokens": 100, "refused_fields": ("ignore_eos",), "is_chat_only": True}
    report = judge_benchmark([level_of([request()])], **made)
    told = next(check for check in report.checks if check.name == "answers").evidence
    assert report.state is State.OK
    assert [line.partition(":")[0] for line in told[1:]] == [
        "the service refuses ignore_eos",
        "the service has no /v1/completions",
    ]
    assert "of 100 tokens in the mean" in told[0]
    assert judge_benchmark([level_of([request()])], n_asked_tokens=1).checks[3].evidence == ()


def test_a_summary_names_the_most_frequent_failure():
    """The headline of a failed benchmark holds the class and the words of what failed most."""
    failed = [request(error="http_401"), request(error="http_401"), request(error="cut")]
    level = level_of(failed).model_copy(update={"error_messages": {"http_401": "no key", "cut": "gone"}})
    assert judge_benchmark([level]).summary.startswith("3 of 3 requests failed (http_401: no key); no result at")
