"""`opslib runs`: the records, newest first, as `60-review-runs` shows them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.reviewing import ANY, facts_of, select_records
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.domain.parameters import validate_parameters
from opslib.records.index import RecordEntry
from opslib.views.records import COLUMNS, record_rows


@click.command("runs")
@click.option(
    "--runs-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the records are [runs/].",
)
@click.option("--host", default="", help="List only runs on this host.")
@click.option("--unit", default="", help="List only runs of this unit.")
@click.option("--runbook", default="", help="List only runs of this runbook (name or number).")
@click.option("--state", default=ANY, show_default=True, help="List only runs that ended so.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="List only the newest N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def runs_command(runs_dir: Path | None, limit: int | None, as_json: bool, **wanted: str) -> int:
    """List the records of earlier runs, newest first."""
    validate_parameters("60-review-runs", wanted)
    place = runs_dir or default_runs_dir()
    entries = select_records(place, limit=limit, **wanted)
    if as_json:
        show(json.dumps({"records": [_document(entry) for entry in entries]}, ensure_ascii=False))
    elif not entries:
        n_records = len(select_records(place))
        said = f"none of {n_records} records in {place} matches" if n_records else f"no records in {place}"
        show(said, file=sys.stderr)
    else:
        rows = record_rows([facts_of(entry) for entry in entries])
        folders = [_short(entry.folder) for entry in entries]
        show("\n".join(plain_table((*COLUMNS, "record"), [[*row, at] for row, at in zip(rows, folders, strict=True)])))
    return 0


def _document(entry: RecordEntry) -> dict[str, Any]:
    return {**entry.model_dump(mode="json"), "shown_state": entry.shown_state}


def _short(folder: str) -> str:
    """The folder as it would be typed here."""
    path = Path(folder)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
