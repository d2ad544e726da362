"""Server-sent events out of bytes that may be cut anywhere (WHATWG HTML, section 9.2.6)."""

from typing import List, Optional

_FIELDS = (b"", b"event", b"id", b"retry")  # an empty name makes a comment


class EventSplitter:
    r"""Collects bytes and gives the data of each event as soon as its empty line is there.

    Works on bytes, so a UTF-8 character cut in two is whole again before anybody decodes it. Comments and the
    fields `event`, `id` and `retry` are passed over, as is one byte order mark at the beginning; lines end in LF, CR LF
    or CR.

    >>> splitter = EventSplitter()
    >>> splitter.feed(b": keep-alive\r\n\r\ndata: {"), splitter.feed(b"}\n\ndata: [DONE]\n\n")
    ([], [b'{}', b'[DONE]'])
    """

    def __init__(self) -> None:
        self._rest: List[bytes] = []  # pieces of a line without end: joined once, a line may be megabytes long
        self._data: List[bytes] = []
        self._after_cr = False
        self._is_first = True  # whether the next line is
        self.stray = b""  # the first line that belongs to no event: what a server says that forgets its manners

    def feed(self, piece: bytes) -> List[bytes]:
        """The data of the events that `piece` completes; several data lines of one event are joined by LF."""
        if self._after_cr and piece:
            piece = piece[1:] if piece[:1] == b"\n" else piece
            self._after_cr = False
        if not piece:
            return []
        if b"\n" not in piece and b"\r" not in piece:
            self._rest.append(piece)
            return []
        self._after_cr = piece[-1:] == b"\r"
        lines = _lines(b"".join([*self._rest, piece]))
        self._rest = [rest for rest in [lines.pop()] if rest]
        if self._is_first and lines:
            self._is_first = False
            lines[0] = _without_mark(lines[0])
        events = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    def rest(self) -> Optional[bytes]:
        """The data of an event that has begun and that no empty line has ended, at the stream's end; None without one.

        A browser drops it; a server that ends with `data: [DONE]` and one line feed has still said what it had to say.
        """
        line = b"".join(self._rest)
        self._take(_without_mark(line) if self._is_first else line)
        data, self._rest, self._data = self._data, [], []
        return b"\n".join(data) if data else None

    def _take(self, line: bytes) -> None:
        if line[:5] == b"data:":
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif not self.stray and line.partition(b":")[0].strip() not in _FIELDS:
            self.stray = line


def _without_mark(line: bytes) -> bytes:
    return line[3:] if line[:3] == b"\xef\xbb\xbf" else line


def _lines(text: bytes) -> List[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.split(b"\n")
