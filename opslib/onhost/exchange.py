"""One connection that carries one request after the other, every byte stamped as it reached the machine.

On Linux the kernel stamps what arrives on a plain connection (`stamped_socket`); over TLS, and elsewhere, the stamp is
taken when the bytes are read.
"""

import asyncio
import os
import socket
import ssl
import sys
from time import perf_counter
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from opslib.onhost.http1 import ProtocolError, ResponseReader, request_bytes
from opslib.onhost.stamped_socket import StampedSocket

CONNECT_TIMEOUT_S = 10.0
STALE_S = 0.25  # within this a kept connection's end says that the server had closed it before it was asked
_DONE = b"[DONE]"
_LAST_CHUNK = b"0\r\n\r\n"
_ENDS = (b"\r\n\r\n", b"\n\n\n")  # how the last read of a chunked answer may end; most events don't

Failure = Optional[Tuple[str, str]]  # class and message


class Response(NamedTuple):
    """An answer without its framing: the head's fields, the body's pieces with their stamps."""

    headers: Dict[str, str]
    pieces: List[Tuple[float, bytes]]
    ends_by_close: bool  # then nothing tells a whole body from one that was cut


class Exchange(NamedTuple):
    """A request and what came back: stamps on the client's clock, bytes as read, or the class of its failure."""

    sent_at: float
    ended_at: float
    status: int
    raw: List[Tuple[float, bytes]]
    error: Failure = None

    @property
    def response(self) -> Response:
        """What the bytes say; raises ProtocolError."""
        reader = ResponseReader()
        pieces = [(at, piece) for at, data in self.raw for piece in reader.feed(data)] if not self.error else []
        if reader.is_chunked and not reader.is_complete:
            raise ProtocolError("chunks without end")
        return Response(reader.headers, pieces, reader.ends_by_close)

    @property
    def pieces(self) -> List[Tuple[float, bytes]]:
        """The body's pieces with their stamps, without head and chunk framing; raises ProtocolError."""
        return self.response.pieces

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(piece for _, piece in self.pieces)

    @property
    def body_text(self) -> str:
        """The whole body as text; "" where it is none that HTTP allows."""
        try:
            return self.body.decode("utf-8", "replace")
        except ProtocolError:
            return ""


class Target(NamedTuple):
    """Where requests go: over TLS with a `context`, with `headers` (an API key) on each."""

    address: str
    port: int
    context: Optional[ssl.SSLContext] = None
    headers: Tuple[Tuple[str, str], ...] = ()

    @property
    def host_header(self) -> str:
        """What the request names as its host."""
        return "[%s]:%d" % (self.address, self.port) if ":" in self.address else "%s:%d" % (self.address, self.port)


class Receiver(asyncio.Protocol):
    """Keeps what comes with its stamp, and wakes its owner once for each response, not for each token."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.raw: List[Tuple[float, bytes]] = []
        self.reader = ResponseReader()
        self.done: "Optional[asyncio.Future[Failure]]" = None
        self.is_lost = False
        self._n_fed = 0
        self._is_chunked = self._is_whole = False

    def begin(self) -> "asyncio.Future[Failure]":
        """Expect a response; the future gives None when it is whole, else what went wrong."""
        self.raw, self.reader, self._n_fed = [], ResponseReader(), 0
        self._is_chunked = self._is_whole = False
        self.done = asyncio.get_running_loop().create_future()
        return self.done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.take(perf_counter(), data)

    def take(self, at: float, data: bytes) -> None:
        """Keep the bytes; framing is only looked at where the response may have ended otherwise than they all do.

        The last chunk behind an event's end is taken for the response's; whether the chunks bear that out is seen when
        they are read, after the clock (`Exchange.pieces`).
        """
        self.raw.append((at, data))
        if not self._is_chunked:
            self._feed()
        elif data.endswith(_ENDS) or len(data) < 4:
            before = data[:-5] or self.raw[-2][1]
            if data.endswith(_LAST_CHUNK) and before.endswith(b"\n\r\n"):
                self._is_whole = True
                self.finish(None)
            else:
                self._feed()

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.reader.is_reusable or (self._is_whole and self.reader.keeps_open)

    def _feed(self) -> None:
        try:
            for _, data in self.raw[self._n_fed :]:
                self.reader.feed(data)
        except ProtocolError as error:
            self.finish(("malformed", str(error)))
            return
        self._n_fed = len(self.raw)
        self._is_chunked = self.reader.is_chunked
        if self.reader.is_complete or self._is_done():
            self.finish(None)

    def _is_done(self) -> bool:
        """Whether a body that only the connection's end would end has said that it is over; some servers wait there."""
        tail = b"".join(data for _, data in self.raw[-16:]) if self.reader.ends_by_close else b""
        return tail.rstrip().endswith((b"data: " + _DONE, b"data:" + _DONE))

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.is_lost = True
        self._feed()
        if exc is None:
            self.reader.feed_eof()
        reason = "the server closed the connection before the answer's end"
        if isinstance(exc, OSError):
            reason = _words(exc)
        self.finish(None if self.reader.is_complete else ("cut", reason))

    def expire(self, error: Tuple[str, str]) -> None:
        """Time is up; what came may be whole or no HTTP at all."""
        self._feed()
        self.finish(error)

    def finish(self, error: Failure) -> None:
        """Wake the owner, once."""
        if self.done is not None and not self.done.done():
            self.done.set_result(error)


class Connection:
    """Sends requests one by one over a kept connection; opens a new one where the last cannot be used again."""

    def __init__(
        self,
        address: str,
        port: int,
        context: Optional[ssl.SSLContext] = None,
        headers: Sequence[Tuple[str, str]] = (),
    ) -> None:
        self._target = Target(address, port, context, tuple(headers))
        self._receiver: Optional[Receiver] = None
        self._n_reads = 0  # of the answers that have ended

    @property
    def n_reads(self) -> int:
        """How often bytes have come so far, over all answers: about one for each token."""
        is_open = self._receiver is not None and self._receiver.done is not None
        return self._n_reads + (len(self._receiver.raw) if is_open and self._receiver else 0)

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return self._receiver is not None and not self._receiver.is_lost

    def last_read_at(self) -> Optional[float]:
        """When the open answer last brought bytes; None where none is open or has begun."""
        receiver = self._receiver
        return receiver.raw[-1][0] if receiver is not None and receiver.done is not None and receiver.raw else None

    def give_up(self, error: Tuple[str, str]) -> None:
        """End the open answer as a failure."""
        if self._receiver is not None:
            self._receiver.expire(error)

    async def open(self) -> None:
        """Connect, unless connected. Raises OSError (ssl.SSLError among them) and asyncio.TimeoutError."""
        if not self.is_open:
            self._receiver = await asyncio.wait_for(_connected(self._target), CONNECT_TIMEOUT_S)

    async def ask(self, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> Exchange:
        """One request and its answer; a failure is an Exchange with its class, never an exception."""
        request = request_bytes(method, self._target.host_header, path, body, self._target.headers)
        is_kept = self.is_open
        exchange = await self._ask(request, timeout_s)
        if is_kept and _was_stale(exchange):
            exchange = await self._ask(request, timeout_s)
        return exchange

    async def reach(self) -> Failure:
        """Connect, unless connected; gives the class and words of what is in the way."""
        try:
            await self.open()
        except asyncio.TimeoutError:
            return "connect", "no connection in time"
        except ssl.SSLError as error:
            return "tls", _tls_words(error)
        except OSError as error:
            return "connect", _words(error)
        return None

    async def _ask(self, request: bytes, timeout_s: float) -> Exchange:
        asked_at = perf_counter()
        failure = await self.reach()
        if failure is not None:
            return Exchange(asked_at, perf_counter(), 0, [], failure)
        assert self._receiver is not None
        return await self._exchange(self._receiver, request, timeout_s)

    async def _exchange(self, receiver: Receiver, request: bytes, timeout_s: float) -> Exchange:
        done = receiver.begin()
        error = ("timeout", "no end of the answer in %.3g s" % timeout_s)
        timer = asyncio.get_running_loop().call_later(timeout_s, receiver.expire, error)
        sent_at = perf_counter()
        receiver.transport.write(request)
        try:
            failure = await done
        finally:
            timer.cancel()
            receiver.done = None
            self._n_reads += len(receiver.raw)
            if not receiver.is_reusable:
                self.close()
        if failure is not None and failure[0] == "cut" and not self._n_reads:
            question = "" if self._target.context else "; is it https:// there?"
            failure = "cut", "%s, without a byte%s" % (failure[1], question)
        return Exchange(sent_at, perf_counter(), receiver.reader.status, receiver.raw, failure)

    def close(self) -> None:
        """Drop the connection at once."""
        if self._receiver is not None and self._receiver.transport is not None:
            self._receiver.transport.abort()
        self._receiver = None


def _was_stale(exchange: Exchange) -> bool:
    """Whether the server had closed the connection before the request reached it (RFC 9112, 9.3.1: then ask again)."""
    is_cut = exchange.error is not None and exchange.error[0] == "cut"
    return is_cut and not exchange.raw and exchange.ended_at - exchange.sent_at < STALE_S


def _tls_words(error: ssl.SSLError) -> str:
    words = str(getattr(error, "verify_message", "") or error.reason or error)
    is_plain = words in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")  # by version of OpenSSL
    return "the server speaks no TLS (%s)" % words if is_plain else words


def _words(error: OSError) -> str:
    """What the system calls it: asyncio says "Connect call failed", and the address once more."""
    number = error.errno or 0  # a name that can't be resolved has one below zero
    return os.strerror(number) if number > 0 else error.strerror or str(error)


async def _connected(target: Target) -> Receiver:
    loop = asyncio.get_running_loop()
    receiver = Receiver()
    if target.context is None and sys.platform == "linux":
        found = await loop.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
        error: OSError = OSError("the name %s has no address" % target.address)
        for family, kind, protocol, _, address in found:
            link = socket.socket(family, kind, protocol)
            link.setblocking(False)
            try:
                await loop.sock_connect(link, address)
            except OSError as failed:
                link.close()
                error = failed
                continue
            receiver.transport = StampedSocket(link, receiver.take, receiver.connection_lost)
            return receiver
        raise error
    name = target.address if target.context is not None else None
    await loop.create_connection(
        lambda: receiver, target.address, target.port, ssl=target.context, server_hostname=name
    )
    return receiver
