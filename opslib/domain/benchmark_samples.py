"""Benchmark figures out of raw samples: the load generator's lines become a level, several runs of it one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from opslib.domain.benchmark import BenchmarkLevel, GpuSample, Interval, Percentiles, ServerSample, Slo
from opslib.domain.benchmark_judge import is_client_bound, why_invalid
from opslib.domain.benchmark_stats import (
    Line,
    bootstrap,
    gpu_loads,
    histogram,
    percentiles,
    steady_throughput,
    thinned,
)

_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_latency_ms")


class LevelRun(NamedTuple):
    """One run of one level: the load generator's `level` line and its `request` lines."""

    level: Line
    requests: Sequence[Line]


def summarize(runs: Sequence[LevelRun], *, slo: Slo | None = None, n_gpus: int = 0, seed: int = 0) -> BenchmarkLevel:
    """The figures of one level over all its runs; `seed` fixes the bootstrap's draws.

    Throughput is over the runs' durations together, percentiles are over all samples. With one run, throughput has no
    interval: its noise is between runs.
    """
    level = runs[-1].level
    requests = [request for run in runs for request in run.requests]
    good = [request for request in requests if request["error"] is None]
    columns = {name: [values_of(name, request) for request in good] for name in _LATENCIES}
    base = _counts(runs, good)
    duration_s = base["duration_s"]
    per_user = [1000 / value for values in columns["tpot_ms"] for value in values if value > 0]
    figures = BenchmarkLevel(
        **base,
        **{name: percentiles(_flat(values)) for name, values in columns.items()},
        **_from_send(level, good),
        request_goodput=None if slo is None else _per_s(sum(is_within(request, slo) for request in good), duration_s),
        output_throughput_per_user=float(np.mean(per_user)) if per_user else None,
        output_throughput_per_gpu=base["output_throughput"] / n_gpus if n_gpus else None,
        steady_output_throughput=None
        if level.get("request_rate")
        else steady_throughput(runs, is_counted_in_tokens=base["counted_in"] == "tokens"),
        histograms={name: found for name, values in columns.items() if (found := histogram(_flat(values)))},
        intervals=_intervals(runs, columns, seed),
        repeats=tuple(_figures_of(run) for run in runs) if len(runs) > 1 else (),
        **_client_figures(runs),
        **_server_figures(runs),
        gpu_samples=thinned([GpuSample(**sample) for sample in level.get("gpu_samples", ())]),
        gpus=gpu_loads([GpuSample(**sample) for run in runs for sample in run.level.get("gpu_samples", ())]),
    )
    reasons = why_invalid(figures)
    verdict = {"is_client_bound": is_client_bound(figures), "is_valid": not reasons, "why_invalid": reasons}
    return figures.model_copy(update=verdict)


def values_of(name: str, request: Line) -> Sequence[float]:
    """The samples that one request gives to a figure: many gaps, else one value or none."""
    if name == "itl_ms":
        gaps: Sequence[float] = request["itl_ms"]
        return gaps
    value = _tpot_ms(request) if name == "tpot_ms" else request[name]
    return () if value is None else (value,)


def is_within(request: Line, slo: Slo) -> bool:
    """Whether a good request kept every bound of the SLO that is set."""
    for name, bound in slo.model_dump().items():
        values = values_of(name, request)
        if bound is not None and values and values[0] > bound:
            return False
    return True


def _counts(runs: Sequence[LevelRun], good: Sequence[Line]) -> dict[str, Any]:
    """Everything that is counted: requests, errors, tokens, and what they are per second."""
    level, requests = runs[-1].level, [request for run in runs for request in run.requests]
    failed = [str(request["error"]) for request in requests if request["error"] is not None]
    n_requests = sum(int(run.level["n_requests"]) for run in runs)
    n_missing = n_requests - len(requests)  # never sent: the run's time was up
    errors = {kind: failed.count(kind) for kind in sorted(set(failed))} | ({"not_sent": n_missing} if n_missing else {})
    is_counted = all(request["completion_tokens"] is not None for request in good)
    n_chunks = sum(_n_chunks(request) for request in good)
    n_tokens = sum(int(request["completion_tokens"]) for request in good) if is_counted else n_chunks
    n_input = sum(request["prompt_tokens"] or 0 for request in good)
    duration_s = sum(float(run.level["duration_s"]) for run in runs)
    return {
        "concurrency": max(int(run.level["concurrency"]) for run in runs),
        "request_rate": level.get("request_rate"),
        "arrival": level.get("arrival"),
        "input_tokens": level.get("input_tokens"),
        "n_requests": n_requests,
        "n_errors": len(failed) + n_missing,
        "errors": errors,
        "error_messages": {kind: text for run in reversed(runs) for kind, text in run.level["error_messages"].items()},
        "duration_s": duration_s,
        "request_throughput": _per_s(len(good), duration_s),
        "output_throughput": _per_s(n_tokens, duration_s),
        "input_throughput": _per_s(n_input, duration_s),
        "total_input_tokens": n_input,
        "total_output_tokens": n_tokens,
        "counted_in": "tokens" if is_counted else "chunks",
        "chunks_per_token": n_chunks / n_tokens if is_counted and n_tokens else None,
    }


def _figures_of(run: LevelRun) -> dict[str, float]:
    """One run's own figures by name, for the noise between runs."""
    good = [request for request in run.requests if request["error"] is None]
    counts = _counts([run], good)
    found: dict[str, float] = {name: counts[name] for name in ("request_throughput", "output_throughput")}
    for name in _LATENCIES:
        spread = percentiles(_flat(values_of(name, request) for request in good))
        if spread is not None:
            found |= {f"{name}.{part}": getattr(spread, part) for part in ("mean", "p50", "p90", "p95", "p99")}
    return found


def _intervals(
    runs: Sequence[LevelRun], columns: Mapping[str, Sequence[Sequence[float]]], seed: int
) -> dict[str, Interval]:
    """95 % intervals by figure; gaps of one request are drawn as its own mean, since they hang together."""
    found: dict[str, Interval | None] = {}
    for name, values in columns.items():
        samples = np.array([float(np.mean(each)) for each in values if len(each)], dtype=float)
        for statistic in ("mean",) if name == "itl_ms" else ("mean", "p50", "p90", "p95", "p99"):
            found[f"{name}.{statistic}"] = bootstrap(samples, statistic, seed)
    for name in ("request_throughput", "output_throughput"):
        values_by_run = np.array([_figures_of(run)[name] for run in runs])
        found[name] = bootstrap(values_by_run, "mean", seed)
    return {name: interval for name, interval in found.items() if interval is not None}


def _from_send(level: Line, good: Sequence[Line]) -> dict[str, Percentiles | None]:
    """Of an open loop: the latencies from the real start, and how late that was."""
    if not level.get("request_rate"):
        return {}
    delays = [(request, 1000 * (request["sent_at_s"] - request["intended_at_s"])) for request in good]
    return {
        "ttft_sent_ms": percentiles(r["ttft_ms"] - late for r, late in delays if r["ttft_ms"] is not None),
        "e2e_latency_sent_ms": percentiles(
            r["e2e_latency_ms"] - late for r, late in delays if r["e2e_latency_ms"] is not None
        ),
        "send_delay_ms": percentiles(late for _, late in delays),
    }


def _client_figures(runs: Sequence[LevelRun]) -> dict[str, Any]:
    return {
        "client_cpu_share": max(run.level["client_cpu_share"] for run in runs),
        "loop_lag_p99_ms": max(run.level["loop_lag_p99_ms"] for run in runs),
        "n_processes": max(run.level.get("n_processes", 1) for run in runs),
        "event_loop": runs[-1].level.get("event_loop", "asyncio"),
    }


def _server_figures(runs: Sequence[LevelRun]) -> dict[str, Any]:
    moved = {name: _total([run.level["server"].get(name) for run in runs]) for name in _COUNTERS}
    samples = [ServerSample(**sample) for run in runs for sample in run.level.get("server_samples", ())]
    last = [ServerSample(**sample) for sample in runs[-1].level.get("server_samples", ())]
    preempted = moved["n_preemptions"]
    return {
        "prefix_cache_hit_share": _ratio(moved["prefix_cache_hits"], moved["prefix_cache_queries"]),
        "server_ttft_mean_ms": _ratio(moved["ttft_sum_s"], moved["ttft_count"], 1000),
        "server_queue_time_mean_ms": _ratio(moved["queue_sum_s"], moved["queue_count"], 1000),
        "n_preemptions": None if preempted is None else int(preempted),
        "running_max": _max(sample.running for sample in samples),
        "waiting_max": _max(sample.waiting for sample in samples),
        "kv_cache_usage_max": _max(sample.kv_cache_usage for sample in samples),
        "server_samples": thinned(last),
    }


_COUNTERS = (
    "prefix_cache_hits",
    "prefix_cache_queries",
    "ttft_sum_s",
    "ttft_count",
    "queue_sum_s",
    "queue_count",
    "n_preemptions",
)


def _n_chunks(request: Line) -> int:
    return 0 if request["ttft_ms"] is None else len(request["itl_ms"]) + 1


def _tpot_ms(request: Line) -> float | None:
    n_tokens = request["completion_tokens"] or _n_chunks(request)
    if request["ttft_ms"] is None or n_tokens < 2:
        return None
    return float(request["e2e_latency_ms"] - request["ttft_ms"]) / (n_tokens - 1)


def _ratio(part: float | None, whole: float | None, factor: float = 1.0) -> float | None:
    return round(factor * part / whole, 6) if part is not None and whole else None


def _flat(columns: Iterable[Sequence[float]]) -> list[float]:
    return [value for values in columns for value in values]


def _per_s(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s else 0.0


def _max(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
