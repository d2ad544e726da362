"""Which phase a launch is in, since when, and how far: read from the engine's own lines, one at a time."""

import re
import tomllib
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

from opslib.domain.engine_log import LogLine, Phase, phase_of, phase_patterns
from opslib.domain.states import Value

WAITING, IMPORTING, WEIGHTS, SERVING, FIRST_TOKEN = "waiting_gpu", "importing", "weights", "serving", "first_token"
STOPPING = "stopping"
_BAR = re.compile(r"\b(?P<percent>\d{1,3})%[^\r]{0,600}?(?P<n>\d+)/(?P<total>\d+) \[")


@cache
def shim_table() -> dict[str, Any]:
    """The phases up to serving as the notify shim reads them: title, what begins it, what shows it; and the bar."""
    text = resources.files("opslib.domain.data").joinpath("launch_phases.toml").read_text("utf-8")
    lines = phase_patterns()
    rows = [
        {
            "title": row["title"],
            "begins": list(row.get("begins", ())),
            "patterns": [line for name in row.get("from", ()) for line in lines[name]],
        }
        for row in tomllib.loads(text)["phase"]
    ]
    order = [row["title"] for row in rows].index(launch_phase(SERVING).title)
    first = launch_phase(IMPORTING).order  # the guard is done before the shim runs
    return {"bar": _BAR.pattern, "phases": [row for row in rows[first : order + 1] if row["begins"] or row["patterns"]]}


class PhaseSpan(Value):
    """One phase of one start: from when to when (None: it goes on), and what its progress bar said last."""

    id: str
    title: str
    began_at: datetime
    ended_at: datetime | None = None
    n: int | None = None
    total: int | None = None
    first_n: int | None = None  # the first that the bar said, and when: what the rate is reckoned from
    first_n_at: datetime | None = None
    n_at: datetime | None = None

    def duration_s(self, now: datetime) -> float:
        """Seconds that it took, or has taken until `now`."""
        return ((self.ended_at or now) - self.began_at).total_seconds()

    @property
    def percent(self) -> int | None:
        """How much of it is done, None where no bar says so."""
        return None if self.n is None or not self.total else min(100, 100 * self.n // self.total)

    @property
    def rate_per_s(self) -> float | None:
        """Steps of the bar per second, None before two of them were seen at different times."""
        if None in (self.n, self.first_n, self.n_at, self.first_n_at):
            return None
        took_s = (self.n_at - self.first_n_at).total_seconds()  # type: ignore[operator]
        done = self.n - self.first_n  # type: ignore[operator]
        return done / took_s if took_s > 0 and done > 0 else None


@cache
def _table() -> tuple[tuple[Phase, frozenset[str], re.Pattern[str] | None, str], ...]:
    text = resources.files("opslib.domain.data").joinpath("launch_phases.toml").read_text("utf-8")
    return tuple(_row(order, row) for order, row in enumerate(tomllib.loads(text)["phase"]))


def _row(order: int, row: dict[str, Any]) -> tuple[Phase, frozenset[str], re.Pattern[str] | None, str]:
    begins = "|".join(f"(?:{pattern})" for pattern in row.get("begins", ()))
    phase = Phase(id=row["id"], order=order, title=row["title"])
    return phase, frozenset(row.get("from", ())), re.compile(begins) if begins else None, row.get("process", "")


@cache
def launch_phase(phase_id: str) -> Phase:
    """The phase of that id."""
    return next(row[0] for row in _table() if row[0].id == phase_id)


def launch_phases() -> tuple[Phase, ...]:
    """All phases of a launch in their order."""
    return tuple(row[0] for row in _table())


def launch_phase_of(line: LogLine, *, after: int = -1) -> Phase | None:
    """The phase that a line shows to have begun, None for any other line; those before the order `after` are not told.

    >>> from opslib.domain.engine_log import parse_log_line
    >>> launch_phase_of(parse_log_line("Graph capturing finished in 6 secs, took 0.61 GiB")).id
    'warmup'
    """
    own = next((row[0] for row in _table() if row[2] and row[0].order >= after and row[2].search(line.text)), None)
    if own is not None:
        return own
    shown = phase_of(line.text)
    if shown is not None:
        return next((row[0] for row in _table() if shown.id in row[1]), None)
    said_by = line.process.lower()  # with several of them "ApiServer_0"
    return next((row[0] for row in _table() if row[3] and said_by.startswith(row[3].lower())), None)


class PhaseTrack:
    """The phases of one start, fed line by line; their durations sum to the time since the start."""

    def __init__(self) -> None:
        self.spans: tuple[PhaseSpan, ...] = ()

    @property
    def current(self) -> PhaseSpan | None:
        """The phase it is in."""
        return self.spans[-1] if self.spans else None

    def feed(self, line: LogLine, at: datetime) -> None:
        """Take one line of the engine in; an unknown line says nothing."""
        if line.before:
            self.feed(LogLine(text=line.before), at)
        current = self.current
        order = launch_phase(current.id).order if current else -1
        phase = launch_phase_of(line, after=order if order > launch_phase(IMPORTING).order else -1)
        if phase is not None:
            self.move(phase.id, at)
        is_of_it = self.current is not None and phase is not None and phase.id == self.current.id
        if is_of_it and (match := _BAR.search(line.text)):
            self._progress(int(match["n"]), int(match["total"]), at)

    def move(self, phase_id: str, at: datetime) -> None:
        """A later phase begins; an earlier one is passed over, but that the guard may follow upon the start itself."""
        current, phase = self.current, launch_phase(phase_id)
        if current is not None:
            at = max(at, current.began_at)
            if phase.order <= launch_phase(current.id).order:
                if phase.id == WAITING and current.id == IMPORTING:
                    self._replace(current.model_copy(update={"id": phase.id, "title": phase.title}))
                return
            self._replace(current.model_copy(update={"ended_at": at}))
        self.spans = (*self.spans, PhaseSpan(id=phase.id, title=phase.title, began_at=at))

    def close(self, at: datetime) -> None:
        """The start has ended."""
        if self.current and self.current.ended_at is None:
            self._replace(self.current.model_copy(update={"ended_at": max(at, self.current.began_at)}))

    def _progress(self, n: int, total: int, at: datetime) -> None:
        span = self.spans[-1]
        if span.total == total and span.n is not None:
            if n > span.n:  # several ranks draw their own bars
                self._replace(span.model_copy(update={"n": n, "n_at": at}))
        elif total > 0:
            update = {"n": n, "total": total, "first_n": n, "first_n_at": at, "n_at": at}
            self._replace(span.model_copy(update=update))

    def _replace(self, span: PhaseSpan) -> None:
        self.spans = (*self.spans[:-1], span)


def spans_of(documents: Iterable[Any]) -> tuple[PhaseSpan, ...]:
    """Spans as a record keeps them; what can't be read is passed over."""
    found = []
    for document in documents:
        try:
            found.append(PhaseSpan.model_validate(document))
        except ValueError:
            continue
    return tuple(found)
