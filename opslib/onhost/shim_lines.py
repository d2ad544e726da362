"""What an engine's lines say to the notify shim on their way through it: phase, progress, and whether they are news."""

import os
import re
import threading
from typing import Any, Dict, List, Set

_STAMPS = re.compile(r"\b\d{2,4}-\d{2}(?:-\d{2})?[ T]|\b\d{2}:\d{2}:\d{2}(?:[.,]\d+)?|pid=\d+|\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\x1b\[[0-9;]*m|\([^()]*pid=\d+\) ?|(?:DEBUG|INFO|WARNING|ERROR)(?::? +|$)|\s|\[[\w.]+:\d+\])+"
)
_MOST_LINES = 20000  # remembered, to know what is news


class Phases:
    """Which phase the engine's lines show, how far it is, and whether a line is news."""

    def __init__(self, table: Dict[str, Any]) -> None:
        self._titles = [row["title"] for row in table["phases"]]
        self._begins, self._shows = (
            [[re.compile(pattern) for pattern in row[name]] for row in table["phases"]]
            for name in ("begins", "patterns")
        )
        self._bar = re.compile(table["bar"])
        self._at = -1
        self._progress = ""
        self._seen: Set[int] = set()
        self.n_news = 0

    def feed(self, line: str) -> None:
        """Take one line in; an unknown one is only news."""
        line = line.strip()
        known = hash(_STAMPS.sub("", line))
        if line and known not in self._seen:
            self.n_news += 1
            if len(self._seen) < _MOST_LINES:
                self._seen.add(known)
        text = _PREFIX.sub("", line)
        at = self._phase_of(text)
        if at > self._at:
            self._at, self._progress = at, ""
        bar = self._bar.search(text) if at == self._at else None
        if bar:
            self._progress = " %s/%s" % (bar.group("n"), bar.group("total"))

    def _phase_of(self, text: str) -> int:
        """Which phase a line shows, -1 for none; what ends one phase begins the next, so `begins` comes first."""
        now = max(0, self._at)
        own = (at for at, row in enumerate(self._begins) if at >= now and any(one.search(text) for one in row))
        shown = (at for at, row in enumerate(self._shows) if any(one.search(text) for one in row))
        return next(own, next(shown, -1))

    @property
    def words(self) -> str:
        """As in "loading weights 34/125"."""
        return "starting" if self._at < 0 else self._titles[self._at] + self._progress


class Pump(threading.Thread):
    """Hands the engine's output on, byte for byte and at once, and reads it by the way."""

    def __init__(self, source: int, target: int, phases: Phases) -> None:
        threading.Thread.__init__(self, daemon=True)
        self._source, self._target, self._phases = source, target, phases
        self._own: List[bytes] = []
        self._lock = threading.Lock()
        self._is_whole = True

    def run(self) -> None:
        """Until nobody writes any more."""
        rest = b""
        while True:
            chunk = os.read(self._source, 65536)
            if not chunk:
                break
            self._write(chunk)
            *lines, rest = re.split(b"[\r\n]", rest[-65536:] + chunk)
            for line in lines:
                self._phases.feed(line.decode("utf-8", "replace"))
        self._phases.feed(rest.decode("utf-8", "replace"))

    def say(self, message: str) -> None:
        """A line of the shim's own, between two of the engine's."""
        with self._lock:
            self._own.append(b"notify-shim: %s\n" % message.encode())
        self._write(b"")

    def end(self) -> None:
        """What is still to be said, now."""
        self._write(b"" if self._is_whole else b"\n")

    def _write(self, chunk: bytes) -> None:
        with self._lock:
            self._is_whole = chunk.endswith(b"\n") if chunk else self._is_whole
            if self._is_whole:
                chunk += b"".join(self._own)
                self._own = []
            try:
                while chunk:
                    chunk = chunk[os.write(self._target, chunk) :]
            except OSError:
                pass  # nobody reads: the engine is not to be held up by that
