"""Any text in which a journal may come: journald JSON lines, pasted terminals, `docker logs`, a bug report's file."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from opslib.domain.engine_log import strip_colours
from opslib.domain.facts.journal import JournalEntry, entry_of

Format = Literal["auto", "journal", "text"]
_SAMPLE = 20  # lines that are looked at to tell the format
_HEAD, _TAIL = 1_000, 4_000  # lines of each kind kept from both ends of a very long journal
_MAX_LINE = 200_000
_MESSAGE, _LOOKED_AT = b'"MESSAGE"', 500  # bytes of a message by which its kind is told
_DULL = (b'" 200', b"throughput: ", b"Received request", b"Added request", b"Finished request", b"Route: /")
_QUIET, _QUIET_TELLING = b"INFO ", (b"hutdown", b"SIG", b" 0.0 tokens/s, Running")
_TELLING = (
    *(b"rror", b"xception", b"ail", b"raceback", b".service", b"emory", b"NVRM", b"kill", b"Kill", b"SIG"),
    *(b"hutdown", b'"MESSAGE":[', b'"MESSAGE": [', b" 0.0 tokens/s, Running", b"tarted", b"topp", b"systemd"),
)


def parse_input(text: str | bytes | Iterable[bytes], format: Format = "auto") -> tuple[JournalEntry, ...]:  # noqa: A002
    r"""The entries in a text, each with its 0-based place: the journal object's, or the line's.

    Never raises; bytes that are no UTF-8 become U+FFFD, a line that is no JSON counts as text. Runs of lines that
    only say that requests are served are kept by their ends, and of a very long input the ends: what decides is there.

    >>> [entry.line for entry in parse_input("first\nValueError: second")]
    [0, 1]
    """
    lines = _lines(text)
    head: list[bytes] = []
    for line in lines:
        head.append(line)
        if len(head) >= _SAMPLE:
            break
    is_json = format == "journal" or (format == "auto" and _looks_like_json(head))
    numbered = _numbered(chain(head, lines), is_json=is_json)
    return tuple(_entry(raw, index, is_json=is_json) for index, raw in _bounded(numbered))


def _lines(text: str | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    if isinstance(text, bytes):
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16", "replace").encode("utf-8", "replace")
        text = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return iter(text)


def _looks_like_json(lines: list[bytes]) -> bool:
    said = [line.strip() for line in lines if line.strip()]
    n_json = sum(line.startswith(b"{") and line.endswith(b"}") and b'"' in line for line in said)
    return bool(said) and n_json * 2 > len(said)


def _numbered(lines: Iterable[bytes], *, is_json: bool) -> Iterator[tuple[int, bytes]]:
    """The lines with their places; between journal objects empty lines don't count."""
    if not is_json:
        return iter(enumerate(lines))
    return enumerate(line for line in lines if not line.isspace() and line)


def _bounded(numbered: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """All lines of a usual journal; of a very long one both ends of the telling, the plain and the dull ones."""
    ends = _Ends(), _Ends(), _Ends()
    telling, plain, dull = (end.add for end in ends)
    for item in numbered:
        raw = item[1]
        start = max(raw.find(_MESSAGE), 0)
        said = raw[start : start + _LOOKED_AT]
        if b'" 200' in said or (b"rror" not in said and _has_one(said, _DULL)):
            dull(item)
        elif _has_one(said, _QUIET_TELLING if _QUIET in said else _TELLING):
            telling(item)
        else:
            plain(item)
    return sorted(item for end in ends for item in end.items())


def _has_one(said: bytes, marks: tuple[bytes, ...]) -> bool:
    for mark in marks:  # noqa: SIM110 - a generator costs more than the search, two million times
        if mark in said:
            return True
    return False


def _entry(raw: bytes, index: int, *, is_json: bool) -> JournalEntry:
    raw = raw[:_MAX_LINE].rstrip(b"\r\n")
    if is_json:
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return entry_of(fields, index=index)
    return JournalEntry(message=strip_colours(raw.decode("utf-8", "replace")), line=index)


class _Ends:
    """The first and the last of many."""

    def __init__(self) -> None:
        self._head: list[tuple[int, bytes]] = []
        self._tail: deque[tuple[int, bytes]] = deque(maxlen=_TAIL)

    def add(self, item: tuple[int, bytes]) -> None:
        self._tail.append(item)
        if len(self._head) < _HEAD:
            self._head.append(item)

    def items(self) -> set[tuple[int, bytes]]:
        return {*self._head, *self._tail}
