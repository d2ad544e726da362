"""Records as values and DataFrames: read whole, compared, put on one time line, told as an incident."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opslib.app.reviewing import select_records
from opslib.domain.run_diff import RunDiff
from opslib.domain.run_facts import KeptRun
from opslib.domain.run_incident import Found, Incident
from opslib.domain.run_timeline import Timeline
from opslib.errors import BadParameter, UnknownName
from opslib.records.find import find_record
from opslib.records.kept import read_run

if TYPE_CHECKING:
    import pandas as pd

REVIEW = "60-review-runs"
MOST_READ = 200  # records that are read whole at once


def read_runs(runs_dir: Path, names: Sequence[str] = (), **wanted: str) -> list[KeptRun]:
    """The records that are named, else those that match what is wanted (as `select_records`), oldest first.

    Reviews are left out: they only look. Raises UnknownName where there is none, BadParameter for too many.
    """
    if names:
        paths = [find_record(runs_dir, name) for name in names]
    else:
        chosen = [entry for entry in select_records(runs_dir, limit=None, **wanted) if entry.runbook != REVIEW]
        paths = [Path(entry.folder) for entry in reversed(chosen) if entry.status != "unreadable"]
    if not paths:
        said = ", ".join(f"{name} {value}" for name, value in wanted.items() if value)
        raise UnknownName(f"no record{f' with {said}' if said else ''} in {runs_dir}", hint="opslib runs lists them")
    if len(paths) > MOST_READ:
        raise BadParameter(f"{len(paths)} records match, {MOST_READ} are read at once at most: say --ticket or --since")
    return [read_run(path) for path in dict.fromkeys(paths)]


def timeline_frame(timeline: Timeline) -> "pd.DataFrame":
    """One row per thing that happened, in order of time."""
    columns = ["at", "source", "text", "host", "unit", "state", "record", "file", "line"]
    return _frame((row.model_dump() for row in timeline.rows), columns)


def diff_frame(diff: RunDiff) -> "pd.DataFrame":
    """One row per thing that differs: its kind, what it is, both values, their ratio, and what may explain it."""
    kinds = {"parameter": diff.parameters, "flag": diff.flags, "version": diff.versions, "verdict": diff.verdicts}
    rows: list[dict[str, object]] = [{"kind": kind, **entry.model_dump()} for kind in kinds for entry in kinds[kind]]
    figures: list[dict[str, object]] = [
        {"kind": "figure", "what": figure.figure, **figure.model_dump(exclude={"figure", "may_explain"})}
        | {"may_explain": "; ".join(figure.may_explain)}
        for figure in diff.figures
    ]
    return _frame([*rows, *figures], ["kind", "what", "a", "b", "ratio", "is_notable", "may_explain"])


def incident_frame(incident: Incident) -> "pd.DataFrame":
    """One row per thing that the draft says: under which heading, when, what, and where it is written."""
    kinds = {
        "impact began": [impact.began for impact in incident.impacts],
        "impact ended": [impact.ended for impact in incident.impacts],
        "detected": [incident.detected],
        "cause": incident.causes,
        "tried": incident.tried,
        "cure": incident.cures,
        "open question": [Found(text=question) for question in incident.open_questions],
    }
    rows = [{"kind": kind, **found.model_dump()} for kind in kinds for found in kinds[kind] if found is not None]
    return _frame(rows, ["kind", "at", "text", "record", "file", "line"])


def _frame(rows: Iterable[dict[str, object]], columns: list[str]) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415 - takes a third of a second, and the command line needs none

    return pd.DataFrame(list(rows), columns=columns)
