"""Which records there are, chosen by what their runs were about, as rows and as a DataFrame."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opslib.records.folder import HTML_FILE, NOTEBOOK_FILE
from opslib.records.index import RecordEntry, list_records

if TYPE_CHECKING:
    import pandas as pd

ANY = "any"


def select_records(
    runs_dir: Path, *, host: str = "", unit: str = "", runbook: str = "", state: str = ANY, limit: int | None = None
) -> list[RecordEntry]:
    """The records that match all that is given, newest first; an empty text and `any` match everything."""
    wanted_unit = unit.removesuffix(".service")
    chosen = [
        entry
        for entry in list_records(runs_dir)
        if host in ("", entry.host)
        and wanted_unit in ("", entry.unit.removesuffix(".service"))
        and _is_runbook(entry.runbook, runbook)
        and state in (ANY, entry.shown_state)
    ]
    return chosen[:limit]


def _is_runbook(name: str, wanted: str) -> bool:
    """By its name, its number or the words after it, as on the command line.

    >>> _is_runbook("90-deploy", "deploy"), _is_runbook("90-deploy", "9"), _is_runbook("90-deploy", "")
    (True, False, True)
    """
    number, _, words = name.partition("-")
    return wanted in ("", name, number, words)


def facts_of(entry: RecordEntry) -> dict[str, Any]:
    """One record as the lists show it: when, host, unit, runbook, state, outcome."""
    return {
        "started_at": entry.started_at,
        "host": entry.host,
        "unit": entry.unit,
        "runbook": entry.runbook,
        "state": entry.shown_state,
        "outcome": entry.reason,
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
    columns = ["started_at", "host", "unit", "runbook", "state", "outcome", "duration_s", "folder"]
    return pd.DataFrame(rows, columns=columns)


def _duration_s(entry: RecordEntry) -> float | None:
    if entry.started_at is None or entry.ended_at is None:
        return None
    return round((entry.ended_at - entry.started_at).total_seconds(), 1)
