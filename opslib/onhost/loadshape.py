"""When requests are sent, and when a sweep has seen enough: numbers in, numbers out."""

import random
from typing import Any, Dict, List, Optional, Sequence, Tuple

Throughputs = Tuple[float, Optional[float]]  # of a whole level, and of its steady part where it had one

MIN_GAIN = 1.05
MAX_CPU_SHARE = 0.60  # beyond this a client is late at its own sockets
MAX_ERROR_SHARE = 0.01


def arrivals(level: Dict[str, Any], rng: random.Random) -> List[float]:
    """Seconds after the start at which each request of an open-loop level is due, in order.

    `arrival`: constant; poisson; gamma (`burstiness` < 1 clusters, as in `vllm bench serve`); burst (`burst` at once,
    the rate kept on average); ramp (the rate rises evenly from `rate` to `to_rate`); trace (`offsets_s` as recorded).
    The end is `n_requests` or `duration_s`, whichever is given; a trace ends by itself.

    >>> arrivals({"arrival": "constant", "rate": 2, "n_requests": 3}, random.Random(0))
    [0.0, 0.5, 1.0]
    >>> arrivals({"arrival": "burst", "rate": 2, "burst": 2, "n_requests": 4}, random.Random(0))
    [0.0, 0.0, 1.0, 1.0]
    """
    kind, count, duration_s = level["arrival"], level.get("n_requests"), level.get("duration_s")
    if kind == "trace":
        offsets = sorted(float(offset) for offset in level["offsets_s"])
        first = offsets[0] if offsets else 0.0
        return [offset - first for offset in offsets[:count] if duration_s is None or offset - first < duration_s]
    due: List[float] = []
    at = 0.0
    ends_at = None if duration_s is None else duration_s - 1e-6  # eighty gaps of 0.05 s are a little less than 4 s
    while (count is None or len(due) < count) and (ends_at is None or at < ends_at):
        due.append(at)
        at += _gap(kind, level, len(due), at, rng)
    return due


def _gap(kind: str, level: Dict[str, Any], n_sent: int, at: float, rng: random.Random) -> float:
    rate = float(level["rate"])
    if kind == "poisson":
        return rng.expovariate(rate)
    if kind == "gamma":
        shape = float(level.get("burstiness") or 1.0)
        return rng.gammavariate(shape, 1 / (rate * shape))
    if kind == "burst":
        size = int(level.get("burst") or 1)
        return 0.0 if n_sent % size else size / rate
    if kind == "ramp":
        share = min(1.0, at / float(level["duration_s"]))
        return 1 / (rate + share * (float(level["to_rate"]) - rate))
    return 1 / rate


def draw(wanted: Any, rng: random.Random) -> int:
    """A number of tokens: the number itself, one of `values`, evenly from `low` to `high`, or normal (`mean`, `std`).

    >>> draw(128, random.Random(0)), draw({"low": 3, "high": 3}, random.Random(0))
    (128, 3)
    """
    if not isinstance(wanted, dict):
        return int(wanted)
    if "values" in wanted:
        return int(rng.choices(wanted["values"], wanted.get("weights"))[0])
    if "low" in wanted:
        return rng.randint(int(wanted["low"]), int(wanted["high"]))
    number = round(rng.gauss(float(wanted["mean"]), float(wanted["std"])))
    return int(min(max(number, wanted.get("min", 1)), wanted.get("max", number)))


def average(wanted: Any) -> int:
    """About how many tokens `draw` gives, to find out how long prompts become."""
    if not isinstance(wanted, dict):
        return int(wanted)
    if "values" in wanted:
        return int(sum(wanted["values"]) / len(wanted["values"]))
    return int(wanted["mean"] if "mean" in wanted else (wanted["low"] + wanted["high"]) / 2)


def doubling(largest: int) -> List[int]:
    """The levels of a sweep: 1, 2, 4 ... and the largest.

    >>> doubling(12)
    [1, 2, 4, 8, 12]
    """
    levels = [1]
    while levels[-1] * 2 < largest:
        levels.append(levels[-1] * 2)
    return levels + ([largest] if largest > 1 else [])


def rotated(levels: Sequence[Any], by: int) -> List[Any]:
    """The same levels in another order for each repeat, so that none is always the first on a cold machine.

    >>> rotated([1, 2, 4], 1)
    [2, 4, 1]
    """
    by %= max(1, len(levels))
    return [*levels[by:], *levels[:by]]


def growth(before: Throughputs, after: Throughputs) -> float:
    """How many times as much a level gives as the one before it: over the whole level or its steady part, the lesser.

    With few requests for each stream, a level's beginning and end hold its whole down, a small one's more than a large
    one's: a full server seems to grow. Its steady part does not, but is short where requests are few.

    >>> growth((852.0, 1023.0), (931.0, 1007.0)) < 1 < growth((100.0, None), (190.0, None))
    True
    """
    ratios = [new / old for old, new in zip(before, after) if old and new]
    return min(ratios, default=0.0)


def stop_reason(levels: Sequence[Dict[str, Any]], bounds: Dict[str, Any]) -> Optional[str]:
    """Why a sweep needs no larger level: a bound is passed, or throughput stopped growing; None to go on.

    A level is {concurrency, client_cpu_share, error_share, output_throughput, steady_output_throughput, and ttft_ms,
    tpot_ms, e2e_latency_ms as {p50, p99}}.
    """
    last = levels[-1]
    if last["client_cpu_share"] > MAX_CPU_SHARE:
        return "the client itself was the bottleneck at concurrency %d" % last["concurrency"]
    most = bounds.get("max_error_share", MAX_ERROR_SHARE)
    if last["error_share"] > most:
        return "%.0f%% of the requests failed at concurrency %d" % (100 * last["error_share"], last["concurrency"])
    for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms"):
        bound = bounds.get(name)
        if bound is not None and last[name]["p99"] > bound:
            found = (name, last[name]["p99"], bound, last["concurrency"])
            return "%s p99 of %.0f is past the bound of %.0f at concurrency %d" % found
    if len(levels) < 2:
        return None
    before = levels[-2]
    gain = growth(*((level["output_throughput"], level.get("steady_output_throughput")) for level in (before, last)))
    if gain < bounds.get("min_gain", MIN_GAIN) and last["ttft_ms"]["p50"] > before["ttft_ms"]["p50"]:
        word = "grew" if gain >= 1 else "fell"
        found = (word, 100 * abs(gain - 1), before["concurrency"], last["concurrency"])
        return "throughput %s by %.0f%% from concurrency %d to %d while ttft grew" % found
    return None
