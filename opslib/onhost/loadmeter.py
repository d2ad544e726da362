"""What the load generator knows about itself and the server beside the answers: CPU, loop lag, counters."""

import asyncio
import time
from typing import Dict, List, Optional

TICK_S = 0.01
COUNTERS = {
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum_s",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
    "vllm:num_preemptions_total": "n_preemptions",
}


class SelfMeter:
    """Measures the client while a level runs: its CPU seconds per second, and how late its event loop wakes."""

    def __init__(self) -> None:
        self._lags: List[float] = []
        self._cpu = time.process_time()
        self._at = time.perf_counter()
        self._ticking = asyncio.ensure_future(self._tick())

    def stop(self) -> Dict[str, float]:
        """The CPU share of one core, and the 99th percentile of the lag in ms, since the meter was made."""
        self._ticking.cancel()
        wall = max(time.perf_counter() - self._at, 1e-6)
        lags = sorted(self._lags) or [0.0]
        return {
            "client_cpu_share": round((time.process_time() - self._cpu) / wall, 4),
            "loop_lag_p99_ms": round(1000 * lags[min(len(lags) - 1, int(0.99 * len(lags)))], 3),
        }

    async def _tick(self) -> None:
        while True:
            at = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._lags.append(max(0.0, time.perf_counter() - at - TICK_S))


def read_counters(text: str) -> Dict[str, float]:
    r"""The counters of COUNTERS in Prometheus text, summed over their labels; absent ones are left out.

    >>> read_counters('vllm:prefix_cache_hits_total{engine="0"} 3\nvllm:prefix_cache_hits_total{engine="1"} 4.0')
    {'prefix_cache_hits': 7.0}
    """
    sums: Dict[str, float] = {}
    for line in text.splitlines():
        metric, _, value = line.rpartition(" ")
        name = COUNTERS.get(metric.partition("{")[0])
        if name is not None:
            try:
                sums[name] = sums.get(name, 0.0) + float(value)
            except ValueError:
                continue
    return sums


def counted(before: Dict[str, float], after: Dict[str, float]) -> Dict[str, Optional[float]]:
    """How far each counter moved; None where the server does not tell, or restarted in between."""
    moved: Dict[str, Optional[float]] = {}
    for name in COUNTERS.values():
        has_both = name in before and name in after and after[name] >= before[name]
        moved[name] = after[name] - before[name] if has_both else None
    return moved
