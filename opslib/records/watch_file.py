"""The event file of a watch: one JSON object a line, whole lines only, also while the disk is full."""

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from opslib.domain.redaction import redact, redact_value

_KEPT_LINES = 20_000  # while nothing can be written
_AGAIN_S = 1.0
_FREE_TEXTS = ("message", "identifier")  # of a journal entry; the rest is what journald itself writes
PATTERN = "watch-*.jsonl"


class WatchFile:
    """Appends events, redacted; where they can't be written they are kept, up to a bound, and written later.

    `problem` says in words what is wrong, "" while all is well; `n_lost` how many had to be given up.
    """

    def __init__(self, path: Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.problem = ""
        self.n_lost = 0
        self._secrets = tuple(secrets)
        self._waiting: deque[bytes] = deque()
        self._again_at = 0.0

    def append(self, document: Mapping[str, Any]) -> None:
        """Write one event, or keep it."""
        line = json.dumps(_redacted(document, self._secrets), ensure_ascii=False, default=str)
        self._waiting.append(line.encode("utf-8", "replace") + b"\n")
        if len(self._waiting) > _KEPT_LINES:
            self._waiting.popleft()
            self.n_lost += 1
        if not self.problem or time.monotonic() >= self._again_at:
            self.flush()

    def flush(self) -> None:
        """Write what is kept; a line is written whole or not at all."""
        try:
            with self.path.open("ab", buffering=0) as file:
                while self._waiting:
                    _write_whole(file.fileno(), self._waiting[0])
                    self._waiting.popleft()
        except OSError as error:
            self.problem = f"{self.path.name} can't be written ({error.strerror}); the watch itself goes on"
            self._again_at = time.monotonic() + _AGAIN_S
        else:
            self.problem = f"{self.n_lost} events could not be written" if self.n_lost else ""


def _redacted(document: Mapping[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    """The event without secrets; of a journal entry only the text is searched: there may be thousands in a second."""
    entry = document.get("entry")
    if document.get("event") != "journal" or not isinstance(entry, Mapping):
        return dict(redact_value(document, secrets))
    texts = {name: redact(str(entry[name]), secrets) for name in _FREE_TEXTS if entry.get(name)}
    return {**document, "entry": {**entry, **texts}}


def _write_whole(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    written = 0
    try:
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def read_watch_file(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, in order; a torn line is left out. Raises OSError where there is no such file."""
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict):
                    yield document


def watch_files(folder: Path) -> tuple[Path, ...]:
    """The event files of a record, in the order in which the watches began."""
    return tuple(sorted(folder.glob(PATTERN), key=lambda path: path.stat().st_mtime))
