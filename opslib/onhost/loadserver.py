"""What the server says of itself while it is loaded: counters before and after, gauges as it goes."""

import asyncio
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

COUNTERS = {
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum_s",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
    "vllm:request_queue_time_seconds_sum": "queue_sum_s",
    "vllm:request_queue_time_seconds_count": "queue_count",
    "vllm:num_preemptions_total": "n_preemptions",
}
GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage",  # its name before 0.10
}
FIRST_SAMPLE_S, SAMPLE_S = 0.25, 1.0

Get = Callable[[], Awaitable[Optional[bytes]]]


class ServerWatch:
    """Asks /metrics while a level runs; the text is kept, and read when nobody's stamps can be delayed by it."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._texts: List[Tuple[float, bytes]] = []
        self._asking: "Optional[asyncio.Task[None]]" = None

    def start(self) -> None:
        """Begin to ask."""
        self._asking = asyncio.ensure_future(self._ask())

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    def samples(self, started_at: float) -> List[Dict[str, Any]]:
        """Running and waiting requests and KV-cache use, by the seconds since `started_at`."""
        lines = []
        for at, text in self._texts:
            gauges = read_metrics(text, GAUGES)
            if gauges:
                lines.append({"at_s": round(at - started_at, 3), **gauges})
        return lines

    async def _ask(self) -> None:
        await asyncio.sleep(FIRST_SAMPLE_S)
        while True:
            at = time.perf_counter()
            text = await self._get()
            if text is None:
                return
            self._texts.append((at, text))
            await asyncio.sleep(SAMPLE_S)


def read_metrics(text: bytes, names: Dict[str, str]) -> Dict[str, float]:
    r"""The metrics of `names` in Prometheus text, summed over their labels (of a share the largest).

    >>> text = b'vllm:num_preemptions_total{engine="0"} 3\nvllm:num_preemptions_total{engine="1"} 4.0'
    >>> read_metrics(text, COUNTERS)
    {'n_preemptions': 7.0}
    """
    found: Dict[str, float] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        metric, _, value = line.rpartition(" ")
        name = names.get(metric.partition("{")[0])
        if name is None:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        found[name] = max(found.get(name, 0.0), number) if name.endswith("usage") else found.get(name, 0.0) + number
    return found


def counted(before: Dict[str, float], after: Dict[str, float]) -> Dict[str, Optional[float]]:
    """How far each counter moved; None where the server does not tell, or restarted in between."""
    moved: Dict[str, Optional[float]] = {}
    for name in COUNTERS.values():
        has_both = name in before and name in after and after[name] >= before[name]
        moved[name] = after[name] - before[name] if has_both else None
    return moved
