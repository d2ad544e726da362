"""One level of a load while it runs: requests are sent as its shape says, and what comes back is stamped."""

import asyncio
import gc
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from opslib.onhost.completions import Completion, failed, read_completion
from opslib.onhost.errorwords import error_message
from opslib.onhost.exchange import Connection, Exchange, Response
from opslib.onhost.http1 import ProtocolError
from opslib.onhost.loadinput import Inputs
from opslib.onhost.loadmeter import SelfMeter
from opslib.onhost.loadtarget import base_paths, place_of, secret_of, tls_context

DEFAULTS: Dict[str, Any] = {
    "url": "",
    "address": "",
    "port": 0,
    "ca_file": "",
    "api_key": "",
    "model": "",
    "endpoint": "",
    "levels": [],
    "n_requests": 32,
    "repeats": 1,
    "sweep": None,
    "input_tokens": 256,
    "output_tokens": 128,
    "seed": 0,
    "warmup": None,
    "deadline_s": 600.0,
    "request_timeout_s": 120.0,
    "read_timeout_s": 60.0,
    "cooldown_s": 5.0,
    "keep_text": False,
    "min_processes": 1,
    "max_processes": None,
    "event_loop": "auto",
    "watches_gpus": False,
    "gpus": [],
}
MAX_HELD_BYTES = 256 << 20  # unread answers kept in memory; beyond this they are read while the clock runs
MAX_OPENED = 64  # connections that an open loop opens before its clock starts
CLOSE_S = 0.05  # a request that timed out so near to the deadline was ended by that


class Answer(NamedTuple):
    """One request's exchange, when it was due, and its completion where it has been read already."""

    number: int
    intended_at: Optional[float]
    exchange: Exchange
    completion: Optional[Completion]


class Load:
    """What all requests have in common, and the run's deadline. Raises Refused."""

    def __init__(self, arguments: Dict[str, Any]) -> None:
        options = {**DEFAULTS, **arguments}
        self.options = options
        self.address, self.port, path, is_tls = place_of(options)
        self.root, self.api, named = base_paths(path)
        self.may_chat = not (named or options["endpoint"])  # where there is no /v1/completions
        options["endpoint"] = named or options["endpoint"] or "/v1/completions"
        self._known: Set[str] = set()  # paths that have answered
        self._absent: Set[str] = set()  # paths that had nothing to say when they were first asked
        self.context = tls_context(options["ca_file"]) if is_tls else None
        self.headers: Tuple[Tuple[str, str], ...] = ()
        if options["api_key"]:
            self.headers = (("Authorization", "Bearer " + secret_of(options["api_key"])),)
        self.ends_at = time.perf_counter() + float(options["deadline_s"])
        self.spread_s = 0.05
        self.inputs = Inputs(options, options["model"])

    def connection(self) -> Connection:
        """A new connection to the server, not yet open."""
        return Connection(self.address, self.port, self.context, self.headers)

    def path(self, endpoint: str) -> str:
        """Where an endpoint lies on this server: those of the API below its base, the others beside that."""
        return self.api + endpoint[3:] if endpoint.startswith("/v1/") else self.root + endpoint

    async def get(self, path: str) -> Optional[bytes]:
        """What the server says under `path`, on a connection of its own; None where it says nothing.

        Where it said nothing the first time, it is not asked again: one that lets us wait would do so at each level.
        """
        if path in self._absent:
            return None
        connection = self.connection()
        exchange = await connection.ask("GET", self.path(path), timeout_s=max(0.05, min(5.0, self.time_left())))
        connection.close()
        if has_failed(exchange):
            self._absent |= {path} - self._known
            return None
        self._known.add(path)
        return exchange.body

    def time_left(self) -> float:
        """Seconds until the run's deadline."""
        return max(0.0, self.ends_at - time.perf_counter())

    def timeout_s(self) -> float:
        """Seconds that the next request may take."""
        return min(float(self.options["request_timeout_s"]), self.time_left())


class Level:
    """One level, or one process's share of it.

    `shape` has concurrency and n_requests or duration_s (closed loop; ramp_s spreads the first requests), or `due`,
    the seconds after the start at which each request is to be sent whatever became of the others (open loop).
    `n_tokens` shortens the answers of a warm-up.
    """

    def __init__(self, load: Load, shape: Dict[str, Any], *, n_tokens: Optional[int] = None) -> None:
        self.load = load
        self.shape = shape
        self.due: Optional[List[float]] = shape.get("due")
        self.n_requests = len(self.due) if self.due is not None else shape.get("n_requests")
        self.concurrency = int(shape.get("concurrency") or 0)
        self.answers: List[Answer] = []
        self.started_at = 0.0
        self.meter: Dict[str, float] = {}
        self.n_sent = self.n_open = self.max_open = 0
        self._n_tokens = n_tokens
        at_first = self.n_requests if self.n_requests is not None else 2 * self.concurrency
        self._bodies = [self._body() for _ in range(at_first)]
        if self.due is None:
            self._bodies.reverse()  # taken from the end
        n_connections = min(at_first, self.concurrency if self.due is None else MAX_OPENED)
        self.connections = [load.connection() for _ in range(n_connections)]
        self._idle = list(self.connections)
        self._held_bytes = 0

    async def run(self, start_at: Optional[float] = None) -> None:
        """Open the connections, then start the clock (at `start_at`), with the garbage collector off."""
        await asyncio.gather(*(connection.open() for connection in self.connections), return_exceptions=True)
        gc.collect()
        gc.disable()
        if start_at is not None:
            await asyncio.sleep(max(0.0, start_at - time.perf_counter()))
        meter = SelfMeter()
        self.started_at = time.perf_counter() if start_at is None else start_at
        try:
            await (self._send_when_due() if self.due is not None else self._send_when_free())
        finally:
            self.meter = meter.stop()
            gc.enable()
            for connection in self.connections:
                connection.close()

    def progress(self) -> Dict[str, Any]:
        """How far the level is."""
        return {
            "type": "progress",
            "concurrency": self.concurrency,
            "n_requests": self.n_requests or self.n_sent,
            "n_done": len(self.answers),
            "n_open": self.n_open,
            "n_errors": sum(has_failed(answer.exchange) for answer in self.answers),
            "n_chunks": sum(connection.n_reads for connection in self.connections),
            "elapsed_s": round(time.perf_counter() - self.started_at, 3),
        }

    def end_stalled(self) -> None:
        """Give up answers that have begun and brought nothing for longer than `read_timeout_s`."""
        bound = float(self.load.options["read_timeout_s"])
        now = time.perf_counter()
        for connection in self.connections:
            at = connection.last_read_at()
            if at is not None and now - at > bound:
                connection.give_up(("stalled", "nothing more came for %.3g s after the answer had begun" % bound))

    def _body(self) -> bytes:
        return self.load.inputs.body(self.shape, n_tokens=self._n_tokens)

    async def _send_when_free(self) -> None:
        """Closed loop: the first burst is spread over the ramp, or one time to first token."""
        spread_s = float(self.shape.get("ramp_s") or self.load.spread_s)
        step_s = spread_s / max(1, len(self.connections))
        await asyncio.gather(*(self._work(connection, n * step_s) for n, connection in enumerate(self.connections)))

    async def _work(self, connection: Connection, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        duration_s = self.shape.get("duration_s")
        while self.load.time_left() > 0:
            is_over = duration_s is not None and time.perf_counter() - self.started_at >= duration_s
            if is_over or (self.n_requests is not None and self.n_sent >= self.n_requests):
                return
            self.n_sent += 1
            body = self._bodies.pop() if self._bodies else self._body()
            await self._ask(connection, self.n_sent - 1, body, None)

    async def _send_when_due(self) -> None:
        """Open loop: nobody waits for anybody, so a stall of the server delays no request that is due."""
        sending = []
        for number, due_s in enumerate(self.due or ()):
            wait_s = self.started_at + due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if not self.load.time_left():
                break
            self.n_sent += 1
            sending.append(asyncio.ensure_future(self._send(number, self.started_at + due_s)))
        await asyncio.gather(*sending)

    async def _send(self, number: int, intended_at: float) -> None:
        if not self._idle:
            self._idle.append(self.load.connection())
            self.connections.append(self._idle[-1])
        connection = self._idle.pop()
        await self._ask(connection, number, self._bodies[number], intended_at)
        self._idle.append(connection)

    async def _ask(self, connection: Connection, number: int, body: bytes, intended_at: Optional[float]) -> None:
        self.n_open += 1
        self.max_open = max(self.max_open, self.n_open)
        path = self.load.path(self.load.options["endpoint"])
        exchange = await connection.ask("POST", path, body, timeout_s=self.load.timeout_s())
        self.n_open -= 1
        if exchange.error and exchange.error[0] == "timeout" and self.load.time_left() < CLOSE_S:
            exchange = exchange._replace(error=("deadline", "the run's time was up"))
        self._held_bytes += sum(len(data) for _, data in exchange.raw)
        completion = None
        if self._held_bytes > MAX_HELD_BYTES:
            completion, exchange = read(exchange, keep_text=self.load.options["keep_text"]), exchange._replace(raw=[])
        self.answers.append(Answer(number, intended_at, exchange, completion))


def has_failed(exchange: Exchange) -> bool:
    """Whether the exchange failed as far as HTTP tells; the answer's content is not looked at."""
    return exchange.error is not None or exchange.status != 200


def read(exchange: Exchange, *, keep_text: bool = False) -> Completion:
    """The completion in an exchange; its error is the exchange's class, `http_<code>`, or what the content lacks."""
    if exchange.error is not None:
        return failed(*exchange.error)
    try:
        response = exchange.response
        if exchange.status != 200:
            return failed("http_%d" % exchange.status, _refusal(response))
        packed = response.headers.get("content-encoding", "identity")
        if packed != "identity":
            return failed("malformed", "the answer is compressed (%s), which nobody asked for" % packed)
        return read_completion(response.pieces, keep_text=keep_text, needs_end=response.ends_by_close)
    except ProtocolError as error:
        return failed("malformed", str(error))


def _refusal(response: Response) -> str:
    """What an answer of another status says, and where it points to."""
    words = error_message(b"".join(piece for _, piece in response.pieces))
    place = response.headers.get("location")
    if place:
        return "the server points to %s, which is not followed" % place[:200]
    return words or "the server says nothing more"
