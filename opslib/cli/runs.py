"""`opslib runs`: the records, newest first, as `60-review-runs` shows them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.reviewing import ANY, facts_of, select_records
from opslib.cli.lazy import LazyGroup
from opslib.cli.runs_options import json_option, runs_dir_option
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.domain.parameters import validate_parameters
from opslib.records.index import RecordEntry
from opslib.views.records import COLUMNS, record_rows

# subcommand -> (where it is, what --help says); without one, the records are listed
SUBCOMMANDS = {
    "show": ("opslib.cli.runs_show:show_command", "One record: its outcome, section by section."),
    "verify": ("opslib.cli.runs_verify:verify_command", "Whether records are as they were sealed, and by whom."),
}


@click.group("runs", cls=LazyGroup, table=SUBCOMMANDS, invoke_without_command=True)
@runs_dir_option
@click.option("--host", default="", help="List only runs on this host.")
@click.option("--unit", default="", help="List only runs of this unit.")
@click.option("--runbook", default="", help="List only runs of this runbook (name or number).")
@click.option("--state", default=ANY, show_default=True, help="List only runs that ended so.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="List only the newest N.")
@json_option
@click.pass_context
def runs_command(ctx: click.Context, /, runs_dir: Path | None, limit: int | None, as_json: bool, **wanted: str) -> int:
    """List the records of earlier runs, newest first; with a command, look at some of them."""
    if ctx.invoked_subcommand is not None:  # its own options count over those before its name
        ctx.default_map = {ctx.invoked_subcommand: {"runs_dir": runs_dir, "as_json": as_json}}
        return 0
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
