"""Benchmark figures out of raw samples, and what they are worth."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from opslib.domain.states import CheckResult, State, Value, worst

MAX_ERROR_SHARE = 0.01  # beyond this the figures describe the survivors, not the service
MAX_CACHE_HIT_SHARE = 0.01  # every prompt is new: a hit means that figures are better than they should be
MAX_CLIENT_CPU_SHARE, MAX_LOOP_LAG_MS = 0.60, 5.0  # beyond these a level's figures are marked
COARSE_CPU_SHARE, COARSE_LOOP_LAG_MS = 0.90, 50.0  # beyond these the client, not the server, was measured
KNEE_GAIN = 1.05


class Percentiles(Value):
    """How one figure is distributed over all its samples, in ms."""

    mean: float
    p50: float
    p90: float
    p99: float


class BenchmarkLevel(Value):
    """The figures of one concurrency level, named as in vLLM's own benchmark; latencies in ms, throughput per second.

    `itl_ms` is over the gaps between chunks, `tpot_ms` is (e2e_latency - ttft) / (tokens - 1) of each request.
    Where the server counts no tokens, `counted_in` says that chunks were counted instead.
    """

    concurrency: int
    n_requests: int
    n_errors: int
    errors: Mapping[str, int] = {}
    error_messages: Mapping[str, str] = {}
    duration_s: float
    request_throughput: float
    output_throughput: float
    total_input_tokens: int
    total_output_tokens: int
    counted_in: Literal["tokens", "chunks"] = "tokens"
    chunks_per_token: float | None = None
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    e2e_latency_ms: Percentiles | None = None
    client_cpu_share: float = 0.0
    loop_lag_p99_ms: float = 0.0
    prefix_cache_hit_share: float | None = None
    server_ttft_mean_ms: float | None = None
    n_preemptions: int | None = None
    is_valid: bool = True
    why_invalid: tuple[str, ...] = ()

    @property
    def error_share(self) -> float:
        """Failed requests per request."""
        return self.n_errors / self.n_requests if self.n_requests else 0.0


class BenchmarkReport(Value):
    """What a sweep over concurrency levels found, and whether it is a result."""

    state: State
    summary: str
    levels: tuple[BenchmarkLevel, ...]
    checks: tuple[CheckResult, ...]
    knee_concurrency: int | None = None
    host: str = ""
    model: str = ""


def summarize(level: Mapping[str, Any], requests: Sequence[Mapping[str, Any]]) -> BenchmarkLevel:
    """The figures of one level, from the load generator's `level` line and its `request` lines."""
    good = [request for request in requests if request["error"] is None]
    failed = [str(request["error"]) for request in requests if request["error"] is not None]
    n_missing = int(level["n_requests"]) - len(requests)  # never sent: the run's time was up
    errors = {kind: failed.count(kind) for kind in sorted(set(failed))} | ({"not_sent": n_missing} if n_missing else {})
    is_counted = all(request["completion_tokens"] is not None for request in good)
    n_chunks = sum(_n_chunks(request) for request in good)
    n_tokens = sum(int(request["completion_tokens"]) for request in good) if is_counted else n_chunks
    duration_s = float(level["duration_s"])
    figures = BenchmarkLevel(
        concurrency=level["concurrency"],
        n_requests=level["n_requests"],
        n_errors=len(failed) + n_missing,
        errors=errors,
        error_messages=level["error_messages"],
        duration_s=duration_s,
        request_throughput=len(good) / duration_s if duration_s else 0.0,
        output_throughput=n_tokens / duration_s if duration_s else 0.0,
        total_input_tokens=sum(request["prompt_tokens"] or 0 for request in good),
        total_output_tokens=n_tokens,
        counted_in="tokens" if is_counted else "chunks",
        chunks_per_token=n_chunks / n_tokens if is_counted and n_tokens else None,
        ttft_ms=percentiles(request["ttft_ms"] for request in good),
        tpot_ms=percentiles(_tpot_ms(request) for request in good),
        itl_ms=percentiles(gap for request in good for gap in request["itl_ms"]),
        e2e_latency_ms=percentiles(request["e2e_latency_ms"] for request in good),
        client_cpu_share=level["client_cpu_share"],
        loop_lag_p99_ms=level["loop_lag_p99_ms"],
        **_server_figures(level["server"]),
    )
    reasons = _why_invalid(figures)
    return figures.model_copy(update={"is_valid": not reasons, "why_invalid": reasons})


def percentiles(samples: Iterable[float | None]) -> Percentiles | None:
    """Mean, p50, p90 and p99 (linear between samples) of what is there; None where nothing is.

    >>> percentiles([1.0, None, 3.0]).p50
    2.0
    """
    known = np.array([sample for sample in samples if sample is not None], dtype=float)
    if not known.size:
        return None
    p50, p90, p99 = (round(float(value), 3) for value in np.percentile(known, [50, 90, 99]))
    return Percentiles(mean=round(float(known.mean()), 3), p50=p50, p90=p90, p99=p99)


def judge_benchmark(
    levels: Sequence[BenchmarkLevel], *, n_planned: int | None = None, host: str = "", model: str = ""
) -> BenchmarkReport:
    """Says whether the service answered as it should, and which levels are results.

    The state is about the *service*, so only what the service did makes it: errors (critical where the lowest level
    has more than 1 %, since then it answers at no load; a warning where only higher ones do), answers without tokens
    (critical), prefix-cache hits on prompts that were all new (warning), levels that the deadline left out (warning).
    A client that was short of CPU or woke late (over 60 % of a core, or a loop lag p99 over 5 ms) marks its *level*
    as not valid and leaves the state alone: it can make a service look slower, never faster, and on a shared machine
    it comes and goes with the neighbours, so a deploy must not fail by it. Only where more than half of the levels
    are past bounds at which the client itself was measured (90 % of a core, 50 ms) is that a warning.
    """
    ordered = tuple(sorted(levels, key=lambda level: level.concurrency))
    if not ordered:
        missing = CheckResult(name="errors", state=State.UNKNOWN, summary="no level was measured")
        return BenchmarkReport(
            state=State.UNKNOWN, summary=missing.summary, levels=(), checks=(missing,), host=host, model=model
        )
    checks = (
        _check_errors(ordered),
        _check_tokens(ordered),
        _check_cache(ordered),
        _check_levels(ordered, n_planned),
        _check_client(ordered),
    )
    state, knee = worst(check.state for check in checks), find_knee(ordered)
    summary = next((check.summary for check in checks if check.state is state is not State.OK), "")
    return BenchmarkReport(
        state=state,
        summary=summary or _best(ordered, knee),
        levels=ordered,
        checks=checks,
        knee_concurrency=knee,
        host=host,
        model=model,
    )


def find_knee(levels: Sequence[BenchmarkLevel]) -> int | None:
    """The concurrency past which throughput gains less than 5 % while the median ttft grows; None if it still grows."""
    for level, after in pairwise(levels):
        if level.ttft_ms is None or after.ttft_ms is None:
            return None
        gains = after.output_throughput >= KNEE_GAIN * level.output_throughput
        if not gains and after.ttft_ms.p50 > level.ttft_ms.p50:
            return level.concurrency
    return None


def _n_chunks(request: Mapping[str, Any]) -> int:
    return 0 if request["ttft_ms"] is None else len(request["itl_ms"]) + 1


def _tpot_ms(request: Mapping[str, Any]) -> float | None:
    n_tokens = request["completion_tokens"] or _n_chunks(request)
    if request["ttft_ms"] is None or n_tokens < 2:
        return None
    return float(request["e2e_latency_ms"] - request["ttft_ms"]) / (n_tokens - 1)


def _server_figures(server: Mapping[str, float | None]) -> dict[str, Any]:
    hits, queries = server.get("prefix_cache_hits"), server.get("prefix_cache_queries")
    ttft_s, count, preempted = server.get("ttft_sum_s"), server.get("ttft_count"), server.get("n_preemptions")
    return {
        "prefix_cache_hit_share": hits / queries if hits is not None and queries else None,
        "server_ttft_mean_ms": round(1000 * ttft_s / count, 3) if ttft_s is not None and count else None,
        "n_preemptions": None if preempted is None else int(preempted),
    }


def _why_invalid(level: BenchmarkLevel) -> tuple[str, ...]:
    hits = level.prefix_cache_hit_share or 0.0
    reasons = {
        f"{level.error_share:.0%} of the requests failed": level.error_share > MAX_ERROR_SHARE,
        "no tokens": not level.total_output_tokens,
        f"client took {level.client_cpu_share:.0%} of a core": level.client_cpu_share > MAX_CLIENT_CPU_SHARE,
        f"client woke {level.loop_lag_p99_ms:.1f} ms late (p99)": level.loop_lag_p99_ms > MAX_LOOP_LAG_MS,
        f"{hits:.0%} prefix-cache hits": hits > MAX_CACHE_HIT_SHARE,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def _check_errors(levels: Sequence[BenchmarkLevel]) -> CheckResult:
    failing = [level for level in levels if level.error_share > MAX_ERROR_SHARE]
    n_errors, n_requests = sum(level.n_errors for level in levels), sum(level.n_requests for level in levels)
    evidence = tuple(_error_line(level, kind, count) for level in levels for kind, count in level.errors.items())
    if not failing:
        return CheckResult(
            name="errors", state=State.OK, summary=f"{n_errors} of {n_requests} requests failed", evidence=evidence
        )
    where = ", ".join(str(level.concurrency) for level in failing)
    summary = f"{n_errors} of {n_requests} requests failed; no result at concurrency {where}"
    state = State.CRITICAL if levels[0] in failing else State.WARNING
    return CheckResult(name="errors", state=state, summary=summary, evidence=evidence)


def _error_line(level: BenchmarkLevel, kind: str, count: int) -> str:
    message = level.error_messages.get(kind, "")
    return f"concurrency {level.concurrency}: {count} x {kind}" + (f": {message}" if message else "")


def _check_tokens(levels: Sequence[BenchmarkLevel]) -> CheckResult:
    empty = [level for level in levels if level.n_errors < level.n_requests and not level.total_output_tokens]
    if empty:
        return CheckResult(name="tokens", state=State.CRITICAL, summary="the service answers without any token")
    total = sum(level.total_output_tokens for level in levels)
    unit = "tokens" if all(level.counted_in == "tokens" for level in levels) else "chunks (the server counts no tokens)"
    return CheckResult(name="tokens", state=State.OK, summary=f"{total:,} {unit} received")


def _check_cache(levels: Sequence[BenchmarkLevel]) -> CheckResult:
    worst_share = max((level.prefix_cache_hit_share or 0.0 for level in levels), default=0.0)
    if worst_share > MAX_CACHE_HIT_SHARE:
        summary = f"{worst_share:.0%} prefix-cache hits on new prompts: figures are too good"
        return CheckResult(name="prefix_cache", state=State.WARNING, summary=summary)
    return CheckResult(name="prefix_cache", state=State.OK, summary="no prefix-cache hits to flatter the figures")


def _check_levels(levels: Sequence[BenchmarkLevel], n_planned: int | None) -> CheckResult:
    n_planned = n_planned or len(levels)
    state = State.OK if len(levels) == n_planned else State.WARNING
    return CheckResult(name="levels", state=state, summary=f"{len(levels)} of {n_planned} levels measured in time")


def _check_client(levels: Sequence[BenchmarkLevel]) -> CheckResult:
    marked = [
        level
        for level in levels
        if level.client_cpu_share > MAX_CLIENT_CPU_SHARE or level.loop_lag_p99_ms > MAX_LOOP_LAG_MS
    ]
    coarse = [
        level
        for level in levels
        if level.client_cpu_share > COARSE_CPU_SHARE or level.loop_lag_p99_ms > COARSE_LOOP_LAG_MS
    ]
    if not marked:
        return CheckResult(name="client", state=State.OK, summary="the client kept up at every level")
    where = ", ".join(str(level.concurrency) for level in marked)
    state = State.WARNING if 2 * len(coarse) > len(levels) else State.OK
    evidence = tuple(f"concurrency {level.concurrency}: {'; '.join(level.why_invalid)}" for level in marked)
    summary = f"the client was the bottleneck or disturbed at concurrency {where}; the figures there are marked"
    return CheckResult(name="client", state=state, summary=summary, evidence=evidence)


def _best(levels: Sequence[BenchmarkLevel], knee: int | None) -> str:
    best = max(levels, key=lambda level: level.output_throughput)
    ttft = f", ttft p99 {best.ttft_ms.p99:,.0f} ms" if best.ttft_ms else ""
    growth = f"; saturated past concurrency {knee}" if knee is not None else "; still growing"
    return f"{best.output_throughput:,.0f} {best.counted_in}/s at concurrency {best.concurrency}{ttft}{growth}"
