"""Results in others' words: vLLM's keys both ways, CSV, and what guidellm writes."""

import csv
import io
from datetime import UTC, datetime

import pytest

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.domain.benchmark_formats import level_of_guidellm, level_of_vllm, levels_csv, vllm_result

AT = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)
SPREAD = {"mean": 60.0, "std": 1.5, "p50": 59.0, "p90": 62.0, "p95": 63.0, "p99": 64.0}
# what `vllm bench serve --save-result` of 0.32 writes at the least
VLLM_KEYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
]


def level(**changes):
    given = {
        "concurrency": 4, "n_requests": 8, "n_errors": 1, "errors": {"failed": 1}, "duration_s": 2.0,
        "request_throughput": 3.5, "output_throughput": 448.0, "input_throughput": 500.0, "total_input_tokens": 1000,
        "total_output_tokens": 896, "ttft_ms": SPREAD, "tpot_ms": SPREAD, "itl_ms": SPREAD, "e2e_latency_ms": SPREAD,
    }  # fmt: skip
    return BenchmarkLevel.model_validate({**given, **changes})


def report(*levels):
    return BenchmarkReport(state="ok", summary="", levels=levels, checks=(), model="m")


def test_a_level_has_vllms_keys():
    """Every key that vLLM's client writes is there, with the unit that it has there."""
    result = vllm_result(report(level()), level(), at=AT)
    assert set(VLLM_KEYS) <= set(result)
    assert (result["date"], result["request_rate"], result["max_concurrency"]) == ("20261129-123000", "inf", 4)
    assert (result["completed"], result["failed"], result["p99_e2el_ms"]) == (7, 1, 64.0)
    assert result["total_token_throughput"] == 948.0


def test_an_open_loop_has_a_rate_and_no_concurrency():
    """A level by rate is written as vLLM writes one."""
    result = vllm_result(report(), level(request_rate=2.5), at=AT)
    assert (result["request_rate"], result["max_concurrency"]) == (2.5, None)


def test_what_vllm_wrote_is_the_same_level():
    """Written in vLLM's form and read again, a level has the same figures."""
    assert level_of_vllm(vllm_result(report(), level(), at=AT)) == level()


def test_a_result_of_another_shape_is_refused():
    """A file that is no such result raises, and gives no level of zeros."""
    with pytest.raises(KeyError):
        level_of_vllm({"model_id": "m"})
    with pytest.raises(KeyError):
        level_of_guidellm({"benchmarks": [{"metrics": {}}]}, 1)


def test_csv_has_a_line_for_each_level():
    """The columns are the figures' own names; what was not measured is empty."""
    rows = list(csv.DictReader(io.StringIO(levels_csv([level(), level(concurrency=8, itl_ms=None)]))))
    assert [row["concurrency"] for row in rows] == ["4", "8"]
    assert (rows[0]["ttft_ms.p99"], rows[1]["itl_ms.p50"], rows[0]["request_goodput"]) == ("64.0", "", "")


def test_guidellm_counts_latency_in_seconds():
    """Guidellm's own shape: request latency is in seconds there, in ms here; only what succeeded counts."""
    found = {"count": 8, "mean": 0.06, "std_dev": 0.0015, "total_sum": 512.0}
    spread = {**found, "percentiles": {"p50": 0.059, "p90": 0.062, "p95": 0.063, "p99": 0.064}}
    metrics = {
        "request_totals": {"successful": 8, "errored": 0, "incomplete": 0, "total": 8},
        "requests_per_second": {"successful": spread}, "output_tokens_per_second": {"successful": {**spread, "mean": 450.0}},
        "request_latency": {"successful": spread}, "time_to_first_token_ms": {"successful": {**spread, "mean": 60.0}},
        "output_token_count": {"successful": {**spread, "total_sum": 512.0}},
    }  # fmt: skip
    read = level_of_guidellm({"benchmarks": [{"metrics": metrics, "duration": 2.0}]}, 4)
    assert (read.concurrency, read.output_throughput, read.total_output_tokens) == (4, 450.0, 512)
    assert (read.e2e_latency_ms.mean, round(read.e2e_latency_ms.p99, 6), read.ttft_ms.mean) == (60.0, 64.0, 60.0)
    assert read.itl_ms is None
