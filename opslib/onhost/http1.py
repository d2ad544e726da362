"""HTTP/1.1 without a socket: what to send, and what arrived, in pieces cut anywhere (RFC 9112)."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

MAX_HEAD_BYTES = 65536


class ProtocolError(Exception):
    """The bytes are no HTTP/1.1 response."""


def request_bytes(
    method: str, host: str, path: str, body: bytes = b"", headers: Sequence[Tuple[str, str]] = ()
) -> bytes:
    """One request on a connection that stays open."""
    lines = [
        "%s %s HTTP/1.1" % (method, path),
        "Host: %s" % host,
        "User-Agent: opslib",
        "Accept: text/event-stream, application/json, text/plain",
        "Accept-Encoding: identity",
        "Content-Length: %d" % len(body),
    ]
    if body:
        lines.append("Content-Type: application/json")
    lines += ["%s: %s" % header for header in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


class ResponseReader:
    """Reads one response: feed it bytes, it gives the body's bytes and knows when the response is whole.

    Raises ProtocolError on bytes that are no HTTP. `leftover` holds what came after the response's end.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Dict[str, str] = {}
        self.is_complete = False
        self.leftover = b""
        self._is_old = False  # HTTP/1.0
        self._buffer = b""
        self._at = 0  # how far the buffer has been read: cutting it for every chunk would copy it every time
        self._step: Callable[[], bool] = self._read_head
        self._wanted = 0  # bytes of the body or chunk still to come
        self._body: List[bytes] = []

    @property
    def has_begun(self) -> bool:
        """Whether any byte has come."""
        return bool(self.status or self._buffer)

    @property
    def is_chunked(self) -> bool:
        """Whether the head is there and says that the body comes in chunks."""
        return bool(self.status) and "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.is_complete and self.keeps_open and not self.leftover

    @property
    def keeps_open(self) -> bool:
        """Whether the head says that the connection stays: HTTP/1.1 must say otherwise, HTTP/1.0 must say so."""
        words = [word.strip() for word in self.headers.get("connection", "").lower().split(",")]
        return "keep-alive" in words if self._is_old else "close" not in words

    @property
    def ends_by_close(self) -> bool:
        """Whether nothing but the connection's end tells where the body ends."""
        return self._step == self._read_until_eof

    def feed(self, data: bytes) -> List[bytes]:
        """The pieces of the body in `data`, without chunk framing."""
        self._buffer = self._buffer + data if self._buffer else data
        self._at = 0
        self._body = []
        while not self.is_complete and self._step():
            pass
        self._buffer = self._buffer[self._at :]
        if self.is_complete:
            self.leftover, self._buffer = self.leftover + self._buffer, b""
        return self._body

    def feed_eof(self) -> None:
        """The peer closed: whole only where the body's length was to be told by that."""
        if self.ends_by_close:
            self.is_complete = True
            self.headers["connection"] = "close"

    def _line(self, limit: int = MAX_HEAD_BYTES) -> Optional[bytes]:
        end = self._buffer.find(b"\n", self._at)
        if end < 0:
            if len(self._buffer) - self._at > limit:
                raise ProtocolError("a line without end")
            return None
        line, self._at = self._buffer[self._at : end], end + 1
        return line[:-1] if line[-1:] == b"\r" else line

    def _read_head(self) -> bool:
        text = self._buffer[self._at :]
        if text and not b"HTTP/1.".startswith(text[:7]):
            raise ProtocolError("not HTTP/1.x: %r" % text[:20])
        end, size = _end_of_head(text)
        if end < 0:
            if len(text) > MAX_HEAD_BYTES:
                raise ProtocolError("headers without end")
            return False
        self._at += end + size
        self._take_head(text[:end].decode("latin-1"))
        return True

    def _take_head(self, head: str) -> None:
        first, *lines = head.replace("\r\n", "\n").split("\n")
        fields = first.split(" ", 2)
        if len(fields) < 2 or not fields[1].isdigit():
            raise ProtocolError("no status: %r" % first[:40])
        status = int(fields[1])
        if 100 <= status < 200:
            return
        self.status = status
        self._is_old = fields[0] == "HTTP/1.0"
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._choose_body()

    def _choose_body(self) -> None:
        length = self.headers.get("content-length", "")
        if self.is_chunked:
            self._step = self._read_chunk_size
        elif length.isdigit():
            self._wanted = int(length)
            self._step = self._read_sized
            self.is_complete = self._wanted == 0
        elif self.status in (204, 304):
            self.is_complete = True
        else:
            self._step = self._read_until_eof

    def _take_wanted(self) -> bool:
        piece = self._buffer[self._at : self._at + self._wanted]
        if not piece:
            return False
        self._at += len(piece)
        self._wanted -= len(piece)
        self._body.append(piece)
        return True

    def _read_sized(self) -> bool:
        took = self._take_wanted()
        self.is_complete = self._wanted == 0
        return took

    def _read_until_eof(self) -> bool:
        if self._at < len(self._buffer):
            self._body.append(self._buffer[self._at :])
            self._at = len(self._buffer)
        return False

    def _read_chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        try:
            self._wanted = int(line.split(b";", 1)[0], 16)
        except ValueError:
            raise ProtocolError("no chunk size: %r" % line[:20]) from None
        self._step = self._read_chunk if self._wanted else self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        took = self._take_wanted()
        if took and not self._wanted:
            self._step = self._read_chunk_end
        return took

    def _read_chunk_end(self) -> bool:
        line = self._line(limit=2)
        if line:
            raise ProtocolError("a chunk longer than its size")
        if line is not None:
            self._step = self._read_chunk_size
        return line is not None

    def _read_trailer(self) -> bool:
        line = self._line()
        self.is_complete = line == b""
        return line is not None


def _end_of_head(text: bytes) -> Tuple[int, int]:
    end = text.find(b"\r\n\r\n")
    if end >= 0:
        return end, 4
    return text.find(b"\n\n"), 2
