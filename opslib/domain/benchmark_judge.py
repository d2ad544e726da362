"""What a benchmark's figures are worth: a state that only the service makes, and levels that are results or not."""

from collections.abc import Sequence
from itertools import pairwise

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport, Slo
from opslib.domain.states import CheckResult, State, worst
from opslib.onhost.loadshape import growth

MAX_ERROR_SHARE = 0.01  # beyond this the figures describe the survivors, not the service
MAX_CACHE_HIT_SHARE = 0.01  # every prompt is new: a hit means that figures are better than they should be
MAX_CLIENT_CPU_SHARE, MAX_LOOP_LAG_MS = 0.60, 5.0  # beyond these a level's figures are marked
COARSE_CPU_SHARE, COARSE_LOOP_LAG_MS = 0.90, 50.0  # beyond these the client, not the server, was measured
KNEE_GAIN = 1.05
MIN_LENGTH_SHARE = 0.95  # of the tokens asked for; below it an answer was ended early
MAX_QUOTED = 100  # characters of an error in a summary; the evidence has it whole


def judge_benchmark(
    levels: Sequence[BenchmarkLevel],
    *,
    n_planned: int | None = None,
    host: str = "",
    model: str = "",
    stop_reason: str = "",
    saturation_concurrency: int | None = None,
    slo: Slo | None = None,
    n_repeats: int = 1,
    has_shared_prefixes: bool = False,
    n_asked_tokens: int | None = None,
    refused_fields: Sequence[str] = (),
    is_chat_only: bool = False,
) -> BenchmarkReport:
    """Says whether the service answered as it should, and which levels are results.

    The state is about the *service*, so only what the service did makes it: errors (critical where the lowest level
    has more than 1 %, since then it answers at no load; a warning where only higher ones do), answers without tokens
    (critical), prefix-cache hits on prompts that were all new (warning), levels that the deadline left out (warning).
    A client that was short of CPU or woke late (over 60 % of a core, or a loop lag p99 over 5 ms) marks its *level*
    as not valid and leaves the state alone: it can make a service look slower, never faster, and on a shared machine
    it comes and goes with the neighbours, so a deploy must not fail by it. Only where more than half of the levels
    are past bounds at which the client itself was measured (90 % of a core, 50 ms) is that a warning. That answers are
    shorter than the `n_asked_tokens`, or that the service refused fields of a request, is told and is no fault of it.
    """
    ordered = tuple(sorted(levels, key=_rank))
    if not ordered:
        missing = CheckResult(name="errors", state=State.UNKNOWN, summary="no level was measured")
        return BenchmarkReport(
            state=State.UNKNOWN, summary=missing.summary, levels=(), checks=(missing,), host=host, model=model
        )
    checks = (
        _check_errors(ordered),
        _check_tokens(ordered),
        _check_cache(() if has_shared_prefixes else ordered),
        _check_answers(ordered, n_asked_tokens, refused_fields, is_chat_only=is_chat_only),
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
        saturation_concurrency=saturation_concurrency,
        stop_reason=stop_reason,
        slo=slo,
        n_repeats=n_repeats,
        host=host,
        model=model,
    )


def find_knee(levels: Sequence[BenchmarkLevel]) -> int | None:
    """The concurrency past which throughput gains less than 5 % while the median ttft grows; None if it still grows."""
    closed = [level for level in levels if level.request_rate is None and level.input_tokens is None]
    for level, after in pairwise(closed):
        if level.ttft_ms is None or after.ttft_ms is None:
            return None
        pairs = [(each.output_throughput, each.steady_output_throughput) for each in (level, after)]
        if growth(*pairs) < KNEE_GAIN and after.ttft_ms.p50 > level.ttft_ms.p50:
            return level.concurrency
    return None


def is_client_bound(level: BenchmarkLevel) -> bool:
    """Whether the client was short of CPU or woke late: then the figures are its own, not the service's."""
    return level.client_cpu_share > MAX_CLIENT_CPU_SHARE or level.loop_lag_p99_ms > MAX_LOOP_LAG_MS


def why_invalid(level: BenchmarkLevel) -> tuple[str, ...]:
    """What makes a level no result, one sentence each; empty where it is one."""
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
    summary = f"{n_errors} of {n_requests} requests failed ({_most(failing)}); no result at {_names(failing)}"
    state = State.CRITICAL if levels[0] in failing else State.WARNING
    return CheckResult(name="errors", state=state, summary=summary, evidence=evidence)


def _most(levels: Sequence[BenchmarkLevel]) -> str:
    """The class of most failures, with what was said of the first."""
    kinds = sorted({kind for level in levels for kind in level.errors})
    kind = max(kinds, key=lambda each: sum(level.errors.get(each, 0) for level in levels))
    message = next((level.error_messages[kind] for level in levels if level.error_messages.get(kind)), "")
    return f"{kind}: {message[:MAX_QUOTED]}" if message else kind


def _error_line(level: BenchmarkLevel, kind: str, count: int) -> str:
    message = level.error_messages.get(kind, "")
    return f"{level.name}: {count} x {kind}" + (f": {message}" if message else "")


def _check_tokens(levels: Sequence[BenchmarkLevel]) -> CheckResult:
    empty = [level for level in levels if level.n_errors < level.n_requests and not level.total_output_tokens]
    if empty:
        return CheckResult(name="tokens", state=State.CRITICAL, summary="the service answers without any token")
    total = sum(level.total_output_tokens for level in levels)
    unit = "tokens" if all(level.counted_in == "tokens" for level in levels) else "chunks (the server counts no tokens)"
    return CheckResult(name="tokens", state=State.OK, summary=f"{total:,} {unit} received")


def _check_answers(
    levels: Sequence[BenchmarkLevel], n_asked: int | None, refused_fields: Sequence[str], *, is_chat_only: bool
) -> CheckResult:
    """Whether answers are as long as asked for: shorter ones make other figures than a run of full ones."""
    counted = [level for level in levels if level.counted_in == "tokens" and level.n_requests > level.n_errors]
    n_good = sum(level.n_requests - level.n_errors for level in counted)
    mean = sum(level.total_output_tokens for level in counted) / n_good if n_good else None
    told = []
    if n_asked and mean is not None and mean < MIN_LENGTH_SHARE * n_asked:
        told.append(f"answers have {mean:.3g} of {n_asked} tokens in the mean: the service ends them itself")
    if refused_fields:
        told.append(f"the service refuses {', '.join(refused_fields)}: asked without")
    if is_chat_only:
        told.append("the service has no /v1/completions: chats are asked for")
    summary = "; ".join(told) or "answers are as long as asked for"
    return CheckResult(name="answers", state=State.OK, summary=summary, evidence=tuple(told))


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
    marked = [level for level in levels if is_client_bound(level)]
    coarse = [level for level in levels if _is_coarse(level)]
    if not marked:
        return CheckResult(name="client", state=State.OK, summary="the client kept up at every level")
    state = State.WARNING if 2 * len(coarse) > len(levels) else State.OK
    evidence = tuple(f"{level.name}: {'; '.join(level.why_invalid)}" for level in marked)
    summary = f"the client was the bottleneck or disturbed at {_names(marked)}; the figures there are marked"
    return CheckResult(name="client", state=state, summary=summary, evidence=evidence)


def _is_coarse(level: BenchmarkLevel) -> bool:
    return level.client_cpu_share > COARSE_CPU_SHARE or level.loop_lag_p99_ms > COARSE_LOOP_LAG_MS


def _rank(level: BenchmarkLevel) -> tuple[int, float, int]:
    return level.input_tokens or 0, level.request_rate or 0.0, level.concurrency


def _names(levels: Sequence[BenchmarkLevel]) -> str:
    if all(level.name == f"concurrency {level.concurrency}" for level in levels):
        return "concurrency " + ", ".join(str(level.concurrency) for level in levels)
    return "; ".join(level.name for level in levels)


def _best(levels: Sequence[BenchmarkLevel], knee: int | None) -> str:
    """The best figure of the levels whose client kept up; where all were disturbed, of those it didn't itself bound."""
    usable = [level for level in levels if not is_client_bound(level)]
    usable = usable or [level for level in levels if not _is_coarse(level)] or list(levels)
    best = max(usable, key=lambda level: level.output_throughput)
    ttft = f", ttft p99 {best.ttft_ms.p99:,.0f} ms" if best.ttft_ms else ""
    growth = f"; full from concurrency {knee} on" if knee is not None else "; not full yet"
    return f"{best.output_throughput:,.0f} {best.counted_in}/s at {best.name}{ttft}{growth}"
