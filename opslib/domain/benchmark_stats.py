"""What many samples come to: percentiles, histograms, bootstrap intervals, what GPUs did, the steady part."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opslib.domain.benchmark import GpuLoad, GpuSample, Histogram, Interval, Percentiles
from opslib.onhost.loadsteady import steady_part

N_RESAMPLES = 500
N_BINS = 40
MAX_SAMPLES = 240  # points that a time series keeps

Floats = NDArray[np.float64]
Line = Mapping[str, Any]
_T = TypeVar("_T")


def percentiles(samples: Iterable[float | None]) -> Percentiles | None:
    """Mean and percentiles (linear between samples) of what is there; None where nothing is.

    >>> percentiles([1.0, None, 3.0]).p50
    2.0
    """
    known = np.array([sample for sample in samples if sample is not None], dtype=float)
    if not known.size:
        return None
    p50, p90, p95, p99 = (round(float(value), 3) for value in np.percentile(known, [50, 90, 95, 99]))
    mean, std = round(float(known.mean()), 3), round(float(known.std()), 3)
    return Percentiles(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, std=std, n=int(known.size))


def histogram(samples: Iterable[float]) -> Histogram | None:
    """The samples in bins of equal ratio (a tail is long); None where nothing is above zero."""
    known = np.array(list(samples), dtype=float)
    known = known[known > 0]
    if not known.size:
        return None
    low, high = float(known.min()), float(known.max())
    edges = np.geomspace(low, max(high, low * 1.01), N_BINS + 1)
    counts, _ = np.histogram(known, edges)
    return Histogram(edges=tuple(round(float(edge), 4) for edge in edges), counts=tuple(int(n) for n in counts))


def bootstrap(values: Floats, statistic: str, seed: int) -> Interval | None:
    """The 95 % interval of the mean ("mean") or a percentile ("p99") of `values`, each drawn again with replacement."""
    if values.size < 2:
        return None
    rng = np.random.default_rng(seed)
    n_draws = int(min(N_RESAMPLES, max(50, 5_000_000 // values.size)))
    drawn = rng.choice(values, size=(n_draws, values.size))
    found = drawn.mean(axis=1) if statistic == "mean" else np.percentile(drawn, float(statistic[1:]), axis=1)
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(low=round(float(low), 4), high=round(float(high), 4))


def gpu_loads(samples: Sequence[GpuSample]) -> tuple[GpuLoad, ...]:
    """What each GPU did over its samples."""
    loads = []
    for index in sorted({sample.index for sample in samples}):
        own = [sample for sample in samples if sample.index == index]
        clocks = [sample.sm_clock_mhz for sample in own if sample.sm_clock_mhz is not None]
        loads.append(
            GpuLoad(
                index=index,
                memory_used_max_bytes=max(
                    (each.memory_used_bytes for each in own if each.memory_used_bytes), default=None
                ),
                utilization_mean_percent=_mean(each.utilization_percent for each in own),
                power_mean_w=_mean(each.power_w for each in own),
                sm_clock_mean_mhz=_mean(clocks),
                sm_clock_min_mhz=min(clocks, default=None),
                throttle_reasons=tuple(sorted({reason for each in own for reason in each.throttle_reasons})),
            )
        )
    return tuple(loads)


def steady_throughput(runs: Sequence[tuple[Line, Sequence[Line]]], *, is_counted_in_tokens: bool) -> float | None:
    """Tokens per second of the steady parts of all runs (`loadsteady`); None where none had one."""

    def tokens_of(request: Line, n_chunks: int) -> float:
        return (request["completion_tokens"] or 0) if is_counted_in_tokens else n_chunks

    found = [steady_part(requests, int(level["concurrency"]), tokens_of) for level, requests in runs]
    parts = [part for part in found if part is not None]
    seconds = sum(part_s for _, part_s in parts)
    return sum(tokens for tokens, _ in parts) / seconds if seconds > 0 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 2) if known else None


def thinned(samples: Sequence[_T]) -> tuple[_T, ...]:
    """At most MAX_SAMPLES of the samples, evenly."""
    step = -(-len(samples) // MAX_SAMPLES) or 1
    return tuple(samples[::step])
