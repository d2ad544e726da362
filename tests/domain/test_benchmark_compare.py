"""Comparison of two benchmarks: the verdict per figure, with the noise between repeats, and what it gates."""

import numpy as np
import pytest

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_compare import Subject, compare_figure, compare_levels, worsening
from opslib.domain.states import State


def level(throughput=(100.0, 101.0, 99.0), ttft=(50.0, 51.0, 50.5), **changes):
    repeats = tuple({"output_throughput": a, "ttft_ms.p50": b} for a, b in zip(throughput, ttft, strict=True))
    given = {
        "concurrency": 4, "n_requests": 8, "n_errors": 0, "duration_s": 2.0, "request_throughput": 4.0,
        "output_throughput": throughput[0], "total_input_tokens": 9, "total_output_tokens": 9, "repeats": repeats,
    }  # fmt: skip
    return BenchmarkLevel.model_validate({**given, **changes})


def slowed(percent):
    factor = 1 + percent / 100
    return level(tuple(value / factor for value in (100.0, 101.0, 99.0)), tuple(v * factor for v in (50.0, 51.0, 50.5)))


@pytest.mark.parametrize(
    ("percent", "verdict", "state"),
    [(0, "same", State.OK), (5, "same", State.OK), (20, "worse", State.WARNING), (-20, "better", State.OK)],
)
def test_the_verdict_follows_the_change(percent, verdict, state):
    """With little noise a change beyond the threshold is worse or better, one within it the same."""
    comparison = compare_levels([level()], [slowed(percent)])
    assert (comparison.verdict, comparison.state) == (verdict, state)


def test_worse_is_critical_by_policy():
    """The state of worse is the caller's."""
    assert compare_levels([level()], [slowed(20)], on_worse=State.CRITICAL).state is State.CRITICAL


def test_the_threshold_is_a_parameter():
    """The same change is worse under a smaller threshold."""
    assert compare_levels([level()], [slowed(8)]).verdict != "worse"
    assert compare_levels([level()], [slowed(8)], threshold_percent=4).verdict == "worse"


def test_noise_larger_than_the_threshold_is_inconclusive():
    """Repeats that spread by half decide nothing, and the sentence says which figure."""
    noisy = level((60.0, 100.0, 140.0), (30.0, 50.0, 70.0))
    comparison = compare_levels([level()], [noisy])
    assert (comparison.verdict, comparison.state) == ("inconclusive", State.OK)
    assert "too much noise for 10 %" in comparison.summary


def test_fewer_than_three_repeats_have_no_interval():
    """One run on either side says nothing about the noise between runs."""
    comparison = compare_levels([level()], [level((80.0,), (70.0,))])
    assert comparison.verdict == "inconclusive"
    assert "needs 3 repeats" in comparison.summary
    assert comparison.changes[0].low_percent is None


def test_a_level_run_once_gives_its_own_figures():
    """Without repeats the level's figures are compared, without an interval."""
    once = level(repeats=(), ttft_ms={"mean": 50, "p50": 55.0, "p90": 0, "p95": 0, "p99": 0})
    change = compare_figure(once, once, "ttft_ms.p50", 10)
    assert (change.before, change.now, change.verdict) == (55.0, 55.0, "inconclusive")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"loop_lag_p99_ms": 60.0}, "the client, not the service, was measured at concurrency 4"),
        ({"client_cpu_share": 0.95}, "the client, not the service, was measured at concurrency 4"),
        ({"n_errors": 1}, "12% of the requests failed at concurrency 4"),
    ],
)
def test_a_level_that_is_no_result_decides_nothing(bad, words):
    """Where the client was measured instead of the service, or requests failed, the level gates nothing, and says why."""
    comparison = compare_levels([level()], [slowed(20).model_copy(update=bad)])
    assert (comparison.verdict, comparison.summary) == ("inconclusive", f"inconclusive: {words}")


def test_a_disturbed_client_still_decides():
    """A client that woke a little late (marked, hollow) has its noise in the repeats."""
    late = slowed(20).model_copy(update={"loop_lag_p99_ms": 9.0, "is_client_bound": True, "is_valid": False})
    assert compare_levels([level()], [late]).verdict == "worse"


def test_another_subject_is_told_and_gates_nothing():
    """Where something else changed it is named; worse is then no state."""
    comparison = compare_levels([level()], [slowed(20)], on_worse=State.CRITICAL, differences=["engine 1 -> 2"])
    assert (comparison.verdict, comparison.state) == ("worse", State.OK)
    assert comparison.summary.endswith("with other things changed: engine 1 -> 2")


def test_levels_of_other_names_are_not_compared():
    """Concurrency 4 says nothing about concurrency 8."""
    comparison = compare_levels([level()], [level(concurrency=8)])
    assert (comparison.changes, comparison.verdict) == ((), "inconclusive")


@pytest.mark.parametrize("n", [3, 5])
def test_the_interval_holds_the_truth_as_often_as_it_says(n):
    """Over 300 pairs of equal truth with 3 % noise the 99 % interval excludes no change in at most 3 % of them."""
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(300):
        old, new = (100 * np.exp(0.03 * rng.standard_normal(n)) for _ in range(2))
        _, low, high = worsening(list(old), list(new), is_more_better=False)
        misses += not low <= 0 <= high
    assert misses / 300 <= 0.03


def test_a_subject_says_what_differs():
    """Flags and load are told one by one."""
    one = Subject(host="a", gpus=("H100",), flags={"--max-num-seqs": "256"}, load={"input_tokens": "256"})
    two = one.model_copy(update={"flags": {}, "load": {"input_tokens": "512"}})
    assert one.differences(two) == ("--max-num-seqs 256 -> absent", "input_tokens 256 -> 512")
    assert one.differences(one) == ()
