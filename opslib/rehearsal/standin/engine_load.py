"""Requests in the stand-in engine: continuous batching with latencies that grow with load, and its counters."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

WORDS = """
the model reads each shard then maps weights to ranks while memory fills and kernels compile so that graphs can be
captured before requests arrive; every token waits for its step and a longer queue means a later first word.
""".split()  # noqa: SIM905 - prose
CHARACTERS_PER_TOKEN = 4
CACHE_BLOCK_TOKENS = 16
CACHE_BLOCKS = 20000
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
E2E_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)

Emit = Callable[[str, Optional[str]], None]  # piece of text, finish reason with the last one


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, bounds: Tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.total += value
        for place, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[place] += 1
                return
        self.counts[-1] += 1

    def lines(self, name: str, labels: str) -> List[str]:
        """Its exposition."""
        lines, running = ["# TYPE %s histogram" % name], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts):
            running += count
            lines.append('%s_bucket{le="%s",%s} %.1f' % (name, bound, labels, running))
        return [*lines, "%s_count{%s} %.1f" % (name, labels, running), "%s_sum{%s} %s" % (name, labels, self.total)]


class Request:
    """One sequence: what is asked, how far it is, and where its text goes."""

    def __init__(self, prompt: str, prompt_tokens: int, max_tokens: int, ignore_eos: bool, emit: Emit) -> None:
        digest = hashlib.sha256(prompt.encode("utf-8", "replace")).digest()
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.seed = digest[0]
        self.natural_end = max_tokens if ignore_eos else min(max_tokens, 60 + digest[1])
        self.finish = "length" if self.natural_end == max_tokens else "stop"
        self.emit = emit
        self.arrived_at = time.monotonic()
        self.first_at = 0.0  # when its prefill is done
        self.last_at = 0.0
        self.produced = 0

    def next_piece(self) -> str:
        """The next token's text: the same for the same prompt."""
        word = WORDS[(self.seed + self.produced) % len(WORDS)]
        return word if self.produced == 0 else " " + word


class Load:
    """The scheduler: at most `max_num_seqs` run, the others queue; one timer drives all decode steps."""

    def __init__(self, figures: Dict[str, Any], max_num_seqs: int, cache_tokens: int) -> None:
        self.ttft_base_s = float(figures["ttft_base_ms"]) / 1000
        self.prefill_rate = float(figures["prefill_tokens_per_s"])
        self.itl_base_s = float(figures["itl_base_ms"]) / 1000
        self.doubles_at = float(figures["itl_doubles_at"])
        self.max_num_seqs = max_num_seqs
        self.cache_tokens = max(1, cache_tokens)
        self.running: List[Request] = []
        self.waiting: Deque[Request] = deque()
        self.prefill_free_at = 0.0
        self.blocks: "OrderedDict[bytes, None]" = OrderedDict()
        self.counters: Dict[str, float] = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions"), 0.0
        )
        self.finished: Dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self.ttft = Histogram(TTFT_BUCKETS)
        self.itl = Histogram(ITL_BUCKETS)
        self.e2e = Histogram(E2E_BUCKETS)
        self.timer: Optional[asyncio.TimerHandle] = None
        self.next_at = 0.0

    def add(self, request: Request) -> None:
        """Queue it, and start it when there is a place."""
        self.waiting.append(request)
        self.admit()
        self.schedule()

    def abort(self, request: Request) -> None:
        """Its client is gone."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        self.finished["abort"] += 1

    def admit(self) -> None:
        """Prefills run one after the other, so the first token of a burst's last request comes late."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            fresh = request.prompt_tokens - self.cached_tokens(request)
            start = max(time.monotonic(), self.prefill_free_at)
            self.prefill_free_at = start + fresh / self.prefill_rate
            request.first_at = self.prefill_free_at + self.ttft_base_s
            self.counters["prompt_tokens"] += request.prompt_tokens
            self.running.append(request)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the longest known prefix, in whole blocks; remembers this prompt's blocks."""
        width = CACHE_BLOCK_TOKENS * CHARACTERS_PER_TOKEN
        digest, hits, is_known = hashlib.sha1(), 0, True  # noqa: S324 - a cache key
        data = request.prompt.encode("utf-8", "replace")
        for at in range(0, len(data) - width + 1, width):
            digest.update(data[at : at + width])
            key = digest.digest()
            is_known = is_known and key in self.blocks
            hits += is_known
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > CACHE_BLOCKS:
            self.blocks.popitem(last=False)
        found = min(hits * CACHE_BLOCK_TOKENS, request.prompt_tokens - 1)
        self.counters["prefix_cache_queries"] += request.prompt_tokens
        self.counters["prefix_cache_hits"] += found
        return found

    def step_s(self) -> float:
        """The length of one decode step under the present load."""
        return self.itl_base_s * (1 + len(self.running) / self.doubles_at)

    def schedule(self) -> None:
        """Have the next step come, unless it is on its way or nothing runs."""
        if self.timer is None and self.running:
            loop = asyncio.get_event_loop()
            self.next_at = max(self.next_at + self.step_s(), loop.time())
            self.timer = loop.call_at(self.next_at, self.step)

    def step(self) -> None:
        """One token for every running request whose prefill is done."""
        self.timer = None
        now = time.monotonic()
        for request in list(self.running):
            if request.first_at <= now:
                self.advance(request, now)
        self.admit()
        self.schedule()

    def advance(self, request: Request, now: float) -> None:
        """Give one request its next token."""
        piece = request.next_piece()
        request.produced += 1
        self.counters["generation_tokens"] += 1
        if request.produced == 1:
            self.ttft.observe(now - request.arrived_at)
        else:
            self.itl.observe(now - request.last_at)
        request.last_at = now
        if request.produced < request.natural_end:
            request.emit(piece, None)
            return
        self.running.remove(request)
        self.finished[request.finish] += 1
        self.e2e.observe(now - request.arrived_at)
        request.emit(piece, request.finish)

    def cache_usage(self) -> float:
        """The share of the KV cache in use, 0 to 1."""
        used = sum(request.prompt_tokens + request.produced for request in self.running)
        return min(1.0, used / self.cache_tokens)

    def exposition(self, model: str) -> str:
        """/metrics, in Prometheus' text format with vLLM's names."""
        labels = 'engine="0",model_name="%s"' % model
        gauges = {
            "num_requests_running": len(self.running),
            "num_requests_waiting": len(self.waiting),
            "kv_cache_usage_perc": self.cache_usage(),
        }
        lines: List[str] = []
        for name, value in gauges.items():
            lines += ["# TYPE vllm:%s gauge" % name, "vllm:%s{%s} %s" % (name, labels, float(value))]
        for name, value in self.counters.items():
            lines += ["# TYPE vllm:%s_total counter" % name, "vllm:%s_total{%s} %s" % (name, labels, value)]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.finished.items():
            lines.append('vllm:request_success_total{%s,finished_reason="%s"} %.1f' % (labels, reason, count))
        histograms = {
            "time_to_first_token_seconds": self.ttft,
            "inter_token_latency_seconds": self.itl,
            "e2e_request_latency_seconds": self.e2e,
        }
        bodies = [histogram.lines("vllm:" + name, labels) for name, histogram in histograms.items()]
        return "\n".join([*lines, *itertools.chain.from_iterable(bodies)]) + "\n"
