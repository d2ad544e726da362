"""What the load generator knows about itself: its CPU, and how late its event loop wakes."""

import asyncio
import time
from typing import Dict, List

TICK_S = 0.01


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
