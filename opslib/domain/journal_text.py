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
_TELLING = (
    *(b"rror", b"xception", b"ail", b"raceback", b".service", b"emory", b"NVRM", b"kill", b"Kill", b"SIG"),
    *(b"hutdown", b'"MESSAGE":[', b'"MESSAGE": [', b"tarted", b"topp", b"systemd"),
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
    kept = _bounded(chain(head, lines), is_json=is_json)
    return tuple(_entry(raw, index, is_json=is_json) for index, raw in kept)


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


def _bounded(lines: Iterable[bytes], *, is_json: bool) -> list[tuple[int, bytes]]:
    """All lines of a usual journal with their places; of a very long one both ends, each kind for itself.

    Written for two million lines: no call per line but to the kind's own list. Between journal objects empty lines
    don't count.
    """
    head: list[tuple[int, bytes]] = []
    tails: tuple[deque[tuple[int, bytes]], ...] = tuple(deque(maxlen=_TAIL) for _ in range(3))
    add_telling, add_plain, add_dull = (tail.append for tail in tails)
    index = -1
    for raw in lines:
        if is_json and len(raw) < 3 and not raw.strip():
            continue
        index += 1
        start = raw.find(_MESSAGE)
        said = raw[start : start + _LOOKED_AT] if start > 0 else raw[:_LOOKED_AT]
        if b'" 200' in said:
            add_dull((index, raw))
        elif b"INFO " in said:
            if b"hutdown" in said or b"SIG" in said or b" 0.0 tokens/s, R" in said:
                add_telling((index, raw))
            elif b"throughput: " in said or b" request" in said or b"Route: " in said:
                add_dull((index, raw))
            else:
                add_plain((index, raw))
        elif _has_one(said, _TELLING):
            add_telling((index, raw))
            if len(head) < _HEAD:
                head.append((index, raw))
        else:
            add_plain((index, raw))
        if index < _HEAD:
            head.append((index, raw))
    return sorted({*head, *(item for tail in tails for item in tail)})


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
