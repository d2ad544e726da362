"""HTTP/1.1 of the stand-in engine: one small protocol class per connection, no task per request."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable, Dict, List, Optional, Tuple

from opslib.rehearsal.standin.engine_log import Log

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
ERROR_TYPES = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 500: "InternalServerError"}
MAX_BODY_BYTES = 64 * 1024 * 1024


class HttpError(Exception):
    """A request that is answered with vLLM's error document."""

    def __init__(self, status: int, message: str, param: Optional[str] = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def document(self) -> Dict[str, Any]:
        """vllm/entrypoints/openai/protocol.py ErrorResponse."""
        kind = ERROR_TYPES.get(self.status, REASONS[self.status])
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


class Exchange:
    """One request and the means to answer it; `is_open` turns False when the client is gone."""

    def __init__(self, connection: "Connection", method: str, path: str, headers: Dict[str, str], body: bytes) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.is_open = True
        self.on_close: List[Callable[[], None]] = []

    def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        """A whole response."""
        head = self._head(status, kind, "content-length: %d" % len(content))
        self.connection.write(head + content)
        self.connection.done(self)

    def answer_json(self, document: Any, status: int = 200) -> None:
        """A JSON response."""
        self.answer(status, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())

    def start_stream(self) -> None:
        """The head of a stream of server-sent events."""
        self.connection.write(self._head(200, "text/event-stream; charset=utf-8", "transfer-encoding: chunked"))

    def send_event(self, data: bytes) -> None:
        """One server-sent event in one HTTP chunk."""
        event = b"data: " + data + b"\n\n"
        self.connection.write(b"%x\r\n%s\r\n" % (len(event), event))

    def end_stream(self) -> None:
        """`[DONE]` and the last chunk."""
        self.send_event(b"[DONE]")
        self.connection.write(b"0\r\n\r\n")
        self.connection.done(self)

    def _head(self, status: int, kind: str, length: str) -> bytes:
        connection = self.connection
        connection.log.raw(
            'INFO:     %s - "%s %s HTTP/1.1" %d %s'
            % (connection.peer, self.method, self.path, status, REASONS.get(status, ""))
        )
        return (
            "HTTP/1.1 %d %s\r\nserver: uvicorn\r\ncontent-type: %s\r\n%s\r\n\r\n"
            % (status, REASONS.get(status, ""), kind, length)
        ).encode()


class Connection(asyncio.Protocol):
    """Cuts requests out of the bytes of one connection and hands them, one at a time, to `handle`."""

    def __init__(self, handle: Callable[[Exchange], None], log: Log) -> None:
        self.handle = handle
        self.log = log
        self.transport: Optional[asyncio.Transport] = None
        self.buffer = b""
        self.current: Optional[Exchange] = None
        self.peer = ""
        self.keeps_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = "%s:%s" % tuple((transport.get_extra_info("peername") or ("", 0))[:2])

    def data_received(self, data: bytes) -> None:
        """More bytes."""
        self.buffer += data
        self.next_request()

    def connection_lost(self, exc: Optional[Exception]) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone: what it asked for is aborted."""
        self.transport = None
        if self.current is not None:
            exchange, self.current = self.current, None
            exchange.is_open = False
            for callback in exchange.on_close:
                callback()

    def write(self, data: bytes) -> None:
        """Send, unless the client is gone."""
        if self.transport is not None:
            self.transport.write(data)

    def done(self, exchange: Exchange) -> None:
        """The response is complete."""
        if self.current is exchange:
            self.current = None
        if not self.keeps_alive and self.transport is not None:
            self.transport.close()
            return
        self.next_request()

    def next_request(self) -> None:
        """Start the next whole request in the buffer, if none is being answered."""
        if self.current is not None:
            return
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        try:
            method, path, headers = parse_head(head)
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            if self.transport is not None:
                self.transport.close()
            return
        if headers.get("expect", "").lower() == "100-continue" and not rest:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(rest) < min(length, MAX_BODY_BYTES):
            return
        self.buffer = rest[length:]
        self.keeps_alive = headers.get("connection", "").lower() != "close"
        self.current = Exchange(self, method, path, headers, rest[:length])
        dispatch(self.handle, self.current)


def parse_head(head: bytes) -> Tuple[str, str, Dict[str, str]]:
    """Method, path and lower-cased headers; ValueError where it is no HTTP/1.x."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return method, path, {name.strip().lower(): value.strip() for name, value in pairs}


def dispatch(handle: Callable[[Exchange], None], exchange: Exchange) -> None:
    """Answer, turning a HttpError into its document."""
    try:
        handle(exchange)
    except HttpError as problem:
        exchange.answer_json(problem.document(), problem.status)
