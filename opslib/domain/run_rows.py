"""One row of a time line, and by which clock it stands there."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

from opslib.domain.engine_line import parse_log_line
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.run_facts import KeptRun
from opslib.domain.states import State, Value
from opslib.domain.survey import Clock

Source = Literal["journal", "kernel", "gpu", "health", "unit", "engine", "operator", "run"]


class TimelineRow(Value):
    """One thing that happened: when (UTC), who says so, about which host and unit, and where it is written down."""

    at: datetime
    source: Source
    text: str
    host: str = ""
    unit: str = ""
    state: State | None = None
    record: str
    file: str
    line: int | None = None  # from 1; None: the file as a whole


def row_of(run: KeptRun, at: datetime, source: Source, text: str, file: str, **more: object) -> TimelineRow:
    """A row about the run's own host and unit."""
    about = {"host": run.record.host, "unit": run.record.unit, "record": run.name}
    return TimelineRow(at=at.astimezone(UTC), source=source, text=text.strip(), file=file, **{**about, **more})


def said(entry: JournalEntry) -> str:
    """The first line of a message, who said it in front, without what the time line has in columns of its own."""
    line = parse_log_line((entry.message.strip().splitlines() or [""])[0])
    return f"{line.process}: {line.text}" if line.process else line.text


def clock_of(run: KeptRun) -> Clock | None:
    """How far the host's clock was ahead in this run: as the record says, else as a survey in its evidence does."""
    if run.record.clock is not None:
        return run.record.clock
    for path, text in run.files.items():
        if path.endswith("host.json"):
            with suppress(ValueError, RecursionError, AttributeError):
                if clock := json.loads(text).get("clock"):
                    return Clock.model_validate(clock)
    return None


def offset_of(run: KeptRun) -> timedelta:
    """What a host's time is corrected by: nothing where the clocks agree, or were not compared."""
    clock = clock_of(run)
    is_apart = clock is not None and abs(clock.offset_s) > clock.uncertainty_s
    return timedelta(seconds=clock.offset_s if clock and is_apart else 0)
