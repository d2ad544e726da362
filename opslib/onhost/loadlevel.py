"""One level of a load: workers that send one request after the other, and stamp what comes back."""

import asyncio
import gc
import os
import random
import time
from typing import Any, Dict, List, NamedTuple, Optional

from opslib.onhost.completions import Completion, body_of, error_message, prompt_of, read_completion
from opslib.onhost.exchange import Connection, Exchange
from opslib.onhost.loadmeter import SelfMeter

DEFAULTS: Dict[str, Any] = {
    "address": "",
    "model": "",
    "endpoint": "/v1/completions",
    "n_requests": 32,
    "input_tokens": 256,
    "output_tokens": 128,
    "seed": 0,
    "warmup": 2,
    "deadline_s": 600.0,
    "request_timeout_s": 120.0,
    "keep_text": False,
}
MAX_HELD_BYTES = 64 << 20  # unread answers kept in memory; beyond this they are read while the clock runs


class Answer(NamedTuple):
    """One request's exchange, and its completion where it has been read already."""

    number: int
    exchange: Exchange
    completion: Optional[Completion]


class Load:
    """What all requests have in common, and the run's deadline."""

    def __init__(self, arguments: Dict[str, Any]) -> None:
        options = {**DEFAULTS, **arguments}
        self.options = options
        self.address: str = options["address"] or os.environ.get("OPSLIB_LOOPBACK") or "127.0.0.1"
        self.port = int(options["port"])
        self.path: str = options["endpoint"]
        self.model: str = options["model"]
        self.ends_at = time.perf_counter() + float(options["deadline_s"])
        self.n_words = int(options["input_tokens"])
        self.spread_s = 0.1
        self._rng = random.Random(int(options["seed"]))  # noqa: S311 - words, not keys
        self._nonce = os.urandom(4).hex()
        self._n_prompts = 0

    def connection(self) -> Connection:
        """A new connection to the server, not yet open."""
        return Connection(self.address, self.port)

    async def get(self, path: str) -> Exchange:
        """What the server says under `path`, on a connection of its own."""
        connection = self.connection()
        exchange = await connection.ask("GET", path, timeout_s=min(5.0, self.time_left()))
        connection.close()
        return exchange

    def body(self, n_words: int, n_tokens: int, *, stream: bool = True) -> bytes:
        """A request body whose prompt was never sent before, by this run or another."""
        self._n_prompts += 1
        prompt = prompt_of(n_words, "%x-%s" % (self._n_prompts, self._nonce), self._rng)
        return body_of(self.path, self.model, prompt, n_tokens, stream=stream)

    def time_left(self) -> float:
        """Seconds until the run's deadline."""
        return max(0.0, self.ends_at - time.perf_counter())

    def timeout_s(self) -> float:
        """Seconds that the next request may take."""
        return min(float(self.options["request_timeout_s"]), self.time_left())


class Level:
    """One level while it runs: workers take bodies off a list until it is empty or time is up."""

    def __init__(self, load: Load, concurrency: int, bodies: List[bytes]) -> None:
        self.load = load
        self.concurrency = concurrency
        self.n_requests = len(bodies)
        self.answers: List[Answer] = []
        self.connections = [load.connection() for _ in range(min(concurrency, len(bodies)))]
        self.started_at = 0.0
        self.meter: Dict[str, float] = {}
        self._bodies = list(enumerate(bodies))[::-1]
        self._held_bytes = 0

    async def run(self) -> None:
        """Open the connections, then start the clock, spreading the first burst over one time to first token."""
        await asyncio.gather(*(connection.open() for connection in self.connections), return_exceptions=True)
        gc.collect()
        gc.disable()
        meter = SelfMeter()
        self.started_at = time.perf_counter()
        try:
            step_s = self.load.spread_s / len(self.connections)
            await asyncio.gather(*(self._work(connection, n * step_s) for n, connection in enumerate(self.connections)))
        finally:
            self.meter = meter.stop()
            gc.enable()
            for connection in self.connections:
                connection.close()

    async def _work(self, connection: Connection, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while self._bodies and self.load.time_left() > 0:
            index, body = self._bodies.pop()
            exchange = await connection.ask("POST", self.load.path, body, timeout_s=self.load.timeout_s())
            if exchange.error and exchange.error[0] == "timeout" and not self.load.time_left():
                exchange = exchange._replace(error=("deadline", "the run's time was up"))
            self._held_bytes += sum(len(piece) for _, piece in exchange.pieces)
            completion = None
            if self._held_bytes > MAX_HELD_BYTES:
                completion, exchange = read(exchange), exchange._replace(pieces=[])
            self.answers.append(Answer(index, exchange, completion))

    def progress(self) -> Dict[str, Any]:
        """How far the level is."""
        return {
            "type": "progress",
            "concurrency": self.concurrency,
            "n_requests": self.n_requests,
            "n_done": len(self.answers),
            "n_errors": sum(has_failed(answer.exchange) for answer in self.answers),
            "n_chunks": sum(connection.n_pieces for connection in self.connections),
            "elapsed_s": round(time.perf_counter() - self.started_at, 3),
        }


def has_failed(exchange: Exchange) -> bool:
    """Whether the exchange failed as far as HTTP tells; the answer's content is not looked at."""
    return exchange.error is not None or exchange.status != 200


def read(exchange: Exchange, *, keep_text: bool = False) -> Completion:
    """The completion in an exchange; its error is the exchange's class, `http_<code>`, or what the content lacks."""
    if exchange.error is not None:
        return Completion(None, (), None, None, "", exchange.error)
    if exchange.status != 200:
        return Completion(None, (), None, None, "", ("http_%d" % exchange.status, error_message(exchange.body)))
    return read_completion(exchange.pieces, keep_text=keep_text)
