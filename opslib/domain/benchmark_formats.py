"""Benchmark results in others' words: CSV, the JSON of `vllm bench serve --save-result`, what other clients wrote."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport, Percentiles

_VLLM = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_latency_ms": "e2el"}
_PARTS = ("mean", "std", "p50", "p90", "p95", "p99")
_COUNTS = (
    "concurrency",
    "request_rate",
    "n_requests",
    "n_errors",
    "duration_s",
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "request_goodput",
    "output_throughput_per_user",
    "output_throughput_per_gpu",
    "total_input_tokens",
    "total_output_tokens",
    "counted_in",
    "is_valid",
)
_GUIDELLM = {
    "ttft_ms": "time_to_first_token_ms",
    "tpot_ms": "time_per_output_token_ms",
    "itl_ms": "inter_token_latency_ms",
    "e2e_latency_ms": "request_latency",
}


def vllm_result(report: BenchmarkReport, level: BenchmarkLevel, *, at: datetime) -> dict[str, Any]:
    """One level with the keys that `vllm bench serve --save-result` writes (vllm/benchmarks/serve.py, 0.15 to 0.33)."""
    open_loop = level.request_rate is not None
    result: dict[str, Any] = {
        "date": at.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": "opslib",
        "model_id": report.model,
        "tokenizer_id": report.model,
        "num_prompts": level.n_requests,
        "request_rate": level.request_rate if open_loop else "inf",
        "burstiness": 1.0,
        "max_concurrency": None if open_loop else level.concurrency,
        "duration": level.duration_s,
        "completed": level.n_requests - level.n_errors,
        "failed": level.n_errors,
        "total_input_tokens": level.total_input_tokens,
        "total_output_tokens": level.total_output_tokens,
        "request_throughput": level.request_throughput,
        "request_goodput": level.request_goodput,
        "output_throughput": level.output_throughput,
        "total_token_throughput": level.input_throughput + level.output_throughput,
    }
    for name, word in _VLLM.items():
        figure = getattr(level, name)
        if figure is not None:
            result |= {f"mean_{word}_ms": figure.mean, f"median_{word}_ms": figure.p50, f"std_{word}_ms": figure.std}
            result |= {f"p{part}_{word}_ms": getattr(figure, f"p{part}") for part in (50, 90, 95, 99)}
    return result


def levels_csv(levels: Sequence[BenchmarkLevel]) -> str:
    """A table of all levels, one line each, with the figures' own names as columns."""
    columns = [*_COUNTS, *(f"{name}.{part}" for name in _VLLM for part in _PARTS)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for level in levels:
        writer.writerow([_cell(level, column) for column in columns])
    return text.getvalue()


def _cell(level: BenchmarkLevel, column: str) -> object:
    name, _, part = column.partition(".")
    value = getattr(level, name)
    value = getattr(value, part, None) if part else value
    return "" if value is None else value


def level_of_vllm(result: Mapping[str, Any]) -> BenchmarkLevel:
    """A level from what `vllm bench serve` (or `vllm-rs bench serve`) saved; raises KeyError, ValueError, TypeError."""
    completed, n_asked = int(result["completed"]), int(result["num_prompts"])
    duration_s = float(result["duration"])
    rate = result.get("request_rate")
    return BenchmarkLevel(
        concurrency=int(result.get("max_concurrency") or result.get("max_concurrent_requests") or 1),
        request_rate=float(rate) if isinstance(rate, int | float) and rate > 0 else None,
        n_requests=n_asked,
        n_errors=n_asked - completed,
        errors={"failed": n_asked - completed} if n_asked > completed else {},
        duration_s=duration_s,
        request_throughput=float(result["request_throughput"]),
        output_throughput=float(result["output_throughput"]),
        input_throughput=int(result["total_input_tokens"]) / duration_s if duration_s else 0.0,
        request_goodput=result.get("request_goodput"),
        total_input_tokens=int(result["total_input_tokens"]),
        total_output_tokens=int(result["total_output_tokens"]),
        **{name: _of_vllm(result, word) for name, word in _VLLM.items()},
    )


def _of_vllm(result: Mapping[str, Any], word: str) -> Percentiles | None:
    if f"mean_{word}_ms" not in result:
        return None
    found = {f"p{part}": float(result.get(f"p{part}_{word}_ms", 0.0)) for part in (50, 90, 95, 99)}
    found["p50"] = float(result[f"median_{word}_ms"])
    return Percentiles(mean=float(result[f"mean_{word}_ms"]), std=float(result[f"std_{word}_ms"]), **found)


def level_of_guidellm(result: Mapping[str, Any], concurrency: int) -> BenchmarkLevel:
    """A level from what `guidellm benchmark` saved; raises KeyError, ValueError, TypeError for another shape."""
    (benchmark,) = result["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    figures = {name: _of_guidellm(metrics.get(word)) for name, word in _GUIDELLM.items()}
    latency = figures["e2e_latency_ms"]
    if latency is not None:  # seconds, unlike the others
        parts = {part: 1000 * getattr(latency, part) for part in _PARTS}
        figures["e2e_latency_ms"] = latency.model_copy(update=parts)
    n_requests = int(totals["total"])
    n_good = int(totals["successful"])
    return BenchmarkLevel(
        concurrency=concurrency,
        n_requests=n_requests,
        n_errors=n_requests - n_good,
        errors={"failed": n_requests - n_good} if n_requests > n_good else {},
        duration_s=float(benchmark.get("duration") or benchmark["end_time"] - benchmark["start_time"]),
        request_throughput=float(metrics["requests_per_second"]["successful"]["mean"]),
        output_throughput=float(metrics["output_tokens_per_second"]["successful"]["mean"]),
        total_input_tokens=_total(metrics.get("prompt_token_count"), n_good),
        total_output_tokens=_total(metrics.get("output_token_count"), n_good),
        **figures,
    )


def _of_guidellm(metric: Mapping[str, Any] | None) -> Percentiles | None:
    found = (metric or {}).get("successful") or {}
    if not found.get("count"):
        return None
    percentiles = found["percentiles"]
    parts = {part: float(percentiles[part]) for part in ("p50", "p90", "p95", "p99")}
    return Percentiles(mean=float(found["mean"]), std=float(found["std_dev"]), n=int(found["count"]), **parts)


def _total(metric: Mapping[str, Any] | None, n_good: int) -> int:
    found = (metric or {}).get("successful") or {}
    return int(found.get("total_sum") or n_good * float(found.get("mean") or 0))
