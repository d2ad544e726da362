"""One connection that carries one request after the other, every byte stamped as it leaves the socket."""

import asyncio
from time import perf_counter
from typing import List, NamedTuple, Optional, Tuple

from opslib.onhost.http1 import ProtocolError, ResponseReader, request_bytes

CONNECT_TIMEOUT_S = 10.0


class Exchange(NamedTuple):
    """A request and what came back: stamps on the client's clock, body pieces, or the class of its failure."""

    sent_at: float
    ended_at: float
    status: int
    pieces: List[Tuple[float, bytes]]
    error: Optional[Tuple[str, str]] = None  # class and message

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(piece for _, piece in self.pieces)


class _Receiver(asyncio.Protocol):
    """Stamps in `data_received` and wakes its owner once for each response, not for each token."""

    def __init__(self) -> None:
        self.transport: Optional[asyncio.Transport] = None
        self.reader = ResponseReader()
        self.pieces: List[Tuple[float, bytes]] = []
        self.done: "Optional[asyncio.Future[Optional[Tuple[str, str]]]]" = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        at = perf_counter()
        try:
            for piece in self.reader.feed(data):
                self.pieces.append((at, piece))
        except ProtocolError as error:
            self._finish(("malformed", str(error)))
        if self.reader.is_complete:
            self._finish(None)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.is_lost = True
        self.reader.feed_eof()
        reason = "the server closed the connection before the answer's end" if exc is None else str(exc)
        self._finish(None if self.reader.is_complete else ("cut", reason))

    def _finish(self, error: Optional[Tuple[str, str]]) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(error)


class Connection:
    """Sends requests one by one over a kept connection; opens a new one where the last cannot be used again."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port
        self._receiver: Optional[_Receiver] = None
        self._n_pieces = 0  # of the answers that have ended
        self._host = "[%s]:%d" % (address, port) if ":" in address else "%s:%d" % (address, port)

    @property
    def n_pieces(self) -> int:
        """How many body pieces have come so far, over all answers."""
        is_open = self._receiver is not None and self._receiver.done is not None
        return self._n_pieces + (len(self._receiver.pieces) if is_open and self._receiver else 0)

    async def open(self) -> None:
        """Connect, unless connected. Raises OSError and asyncio.TimeoutError."""
        if self._receiver is None or self._receiver.is_lost:
            loop = asyncio.get_running_loop()
            opening = loop.create_connection(_Receiver, self._address, self._port)
            _, self._receiver = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)

    async def ask(self, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> Exchange:
        """One request and its answer; a failure is an Exchange with its class, never an exception."""
        request = request_bytes(method, self._host, path, body)
        asked_at = perf_counter()
        try:
            await self.open()
        except asyncio.TimeoutError:
            return Exchange(asked_at, perf_counter(), 0, [], ("connect", "no connection in time"))
        except OSError as error:
            return Exchange(asked_at, perf_counter(), 0, [], ("connect", error.strerror or str(error)))
        assert self._receiver is not None
        return await self._exchange(self._receiver, request, timeout_s)

    async def _exchange(self, receiver: _Receiver, request: bytes, timeout_s: float) -> Exchange:
        receiver.reader, receiver.pieces = ResponseReader(), []
        receiver.done = asyncio.get_running_loop().create_future()
        assert receiver.transport is not None
        sent_at = perf_counter()
        receiver.transport.write(request)
        try:
            error = await asyncio.wait_for(receiver.done, timeout_s)
        except asyncio.TimeoutError:
            error = ("timeout", "no end of the answer in %.0f s" % timeout_s)
        finally:
            receiver.done = None
            self._n_pieces += len(receiver.pieces)
            if not receiver.reader.is_reusable:
                self.close()
        return Exchange(sent_at, perf_counter(), receiver.reader.status, receiver.pieces, error)

    def close(self) -> None:
        """Drop the connection at once."""
        if self._receiver is not None and self._receiver.transport is not None:
            self._receiver.transport.abort()
        self._receiver = None
