"""Any text in which a journal may come: journald JSON lines, pasted terminals, `docker logs`, a bug report's file."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from opslib.domain.engine_log import strip_colours
from opslib.domain.facts.journal import JournalEntry, entry_of

Format = Literal["auto", "journal", "text"]
_SAMPLE = 20  # lines that are looked at to tell the format
_HEAD, _TAIL = 4_000, 10_000  # lines of each kind kept from both ends of a very long journal
_MAX_LINE = 200_000
_DULL = (b'" 200', b" throughput: ", b"Received request", b"Added request", b"Finished request", b"Route: /")
_TELLING = (b"rror", b"xception", b"ail", b"raceback", b"systemd", b"kernel", b" 0.0 tokens/s", b"hutdown", b"SIGTERM")


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
    return tuple(_bounded(_entries(_chain(head, lines), is_json=is_json)))


def _lines(text: str | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    if isinstance(text, bytes):
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = text.decode("utf-16", "replace").encode("utf-8", "replace")
        text = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for line in text:
        yield line[:_MAX_LINE].rstrip(b"\r\n")


def _chain(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest


def _looks_like_json(lines: list[bytes]) -> bool:
    said = [line.strip() for line in lines if line.strip()]
    n_json = sum(line.startswith(b"{") and line.endswith(b"}") and b'"' in line for line in said)
    return bool(said) and n_json * 2 > len(said)


def _entries(lines: Iterable[bytes], *, is_json: bool) -> Iterator[tuple[bool, JournalEntry]]:
    """(whether it may tell something, the entry); of a run of dull lines only both ends are parsed."""
    held: tuple[int, bytes] | None = None
    was_dull = False
    index = -1
    for raw in lines:
        if is_json and not raw.strip():
            continue
        index += 1
        is_dull = any(mark in raw for mark in _DULL) and not any(mark in raw for mark in _TELLING[:4])
        if is_dull and was_dull:
            held = (index, raw)
            continue
        if held:
            yield False, _entry(held[1], held[0], is_json=is_json)
            held = None
        was_dull = is_dull
        yield _is_telling(raw), _entry(raw, index, is_json=is_json)
    if held:
        yield False, _entry(held[1], held[0], is_json=is_json)


def _is_telling(raw: bytes) -> bool:
    return any(mark in raw for mark in _TELLING)


def _entry(raw: bytes, index: int, *, is_json: bool) -> JournalEntry:
    if is_json:
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            return entry_of(fields, index=index)
    return JournalEntry(message=strip_colours(raw.decode("utf-8", "replace")), line=index)


def _bounded(entries: Iterable[tuple[bool, JournalEntry]]) -> list[JournalEntry]:
    """All entries of a usual journal; of a very long one the telling and the other lines of both ends."""
    telling, other = _Ends(), _Ends()
    for is_telling, entry in entries:
        (telling if is_telling else other).add(entry)
    return sorted([*telling.entries(), *other.entries()], key=lambda entry: entry.line or 0)


class _Ends:
    """The first and the last of many."""

    def __init__(self) -> None:
        self._head: list[JournalEntry] = []
        self._tail: deque[JournalEntry] = deque(maxlen=_TAIL)

    def add(self, entry: JournalEntry) -> None:
        if len(self._head) < _HEAD:
            self._head.append(entry)
        else:
            self._tail.append(entry)

    def entries(self) -> list[JournalEntry]:
        return [*self._head, *self._tail]
