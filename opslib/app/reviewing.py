"""Which records there are, chosen by what their runs were about, as rows and as a DataFrame."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opslib.domain.moments import parse_moment
from opslib.records.folder import HTML_FILE, NOTEBOOK_FILE
from opslib.records.index import RecordEntry, list_records

if TYPE_CHECKING:
    import pandas as pd

ANY = "any"
FRAME_COLUMNS = [
    *("started_at", "host", "unit", "runbook", "state", "outcome", "ticket", "cause", "cured_by"),
    *("duration_s", "folder"),
]


def select_records(
    runs_dir: Path,
    *,
    host: str = "",
    unit: str = "",
    model: str = "",
    runbook: str = "",
    state: str = ANY,
    ticket: str = "",
    cause: str = "",
    since: str = "",
    until: str = "",
    limit: int | None = None,
) -> list[RecordEntry]:
    """The records that match all that is given, newest first; an empty text and `any` match everything.

    A cause may be given whole or by its family; `since` and `until` are moments in UTC, as "2026-11-29", or how long
    ago, as "7d". Raises BadParameter for what is no moment.
    """
    now = datetime.now(UTC)
    begin, end = parse_moment(since, now), parse_moment(until, now, is_end=True)
    wanted_unit = unit.removesuffix(".service")
    chosen = [
        entry
        for entry in list_records(runs_dir)
        if host in ("", entry.host)
        and wanted_unit in ("", entry.unit.removesuffix(".service"))
        and model in ("", entry.model, entry.model.rpartition("/")[2])
        and _is_runbook(entry.runbook, runbook)
        and state in (ANY, entry.shown_state)
        and ticket.casefold() in ("", entry.ticket.casefold())
        and cause in ("", entry.cause, entry.cause.partition("/")[0])
        and _is_between(entry.started_at, begin, end)
    ]
    return chosen[:limit]


def _is_between(moment: datetime | None, begin: datetime | None, end: datetime | None) -> bool:
    if moment is None:  # of a record that can't be read
        return begin is None and end is None
    return (begin is None or moment >= begin) and (end is None or moment < end)


def _is_runbook(name: str, wanted: str) -> bool:
    """By its name, its number or the words after it, as on the command line.

    >>> _is_runbook("90-deploy", "deploy"), _is_runbook("90-deploy", "9"), _is_runbook("90-deploy", "")
    (True, False, True)
    """
    number, _, words = name.partition("-")
    return wanted in ("", name, number, words)


def facts_of(entry: RecordEntry) -> dict[str, Any]:
    """One record as the lists show it: when, host, unit, runbook, state, outcome, ticket, cause and cure."""
    return {
        "started_at": entry.started_at,
        "host": entry.host,
        "unit": entry.unit,
        "runbook": entry.runbook,
        "state": entry.shown_state,
        "outcome": entry.reason,
        "is_dry_run": entry.is_dry_run,
        "ticket": entry.ticket,
        "cause": entry.cause,
        "cured_by": entry.cured_by,
    }


def document_of(entry: RecordEntry) -> Path:
    """What to open of a record: its offline page, else its notebook, else its folder."""
    folder = Path(entry.folder)
    return next((path for path in (folder / HTML_FILE, folder / NOTEBOOK_FILE) if path.is_file()), folder)


def records_frame(entries: Sequence[RecordEntry]) -> "pd.DataFrame":
    """The records as a DataFrame: their facts, how long each took in seconds, and the folder."""
    import pandas as pd  # noqa: PLC0415 - takes a third of a second, and `opslib runs` needs none

    rows = [
        {**facts_of(entry), "duration_s": _duration_s(entry), "folder": Path(entry.folder).name} for entry in entries
    ]
    return pd.DataFrame(rows, columns=FRAME_COLUMNS)


def _duration_s(entry: RecordEntry) -> float | None:
    if entry.started_at is None or entry.ended_at is None:
        return None
    return round((entry.ended_at - entry.started_at).total_seconds(), 1)
