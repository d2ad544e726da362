"""`opslib runs`: the records, newest first; with a command, one or some of them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.reviewing import ANY, select_records
from opslib.cli.lazy import LazyGroup
from opslib.cli.options import json_option
from opslib.cli.runs_list import list_lines
from opslib.cli.runs_options import runs_dir_option, which_options
from opslib.cli.showing import show
from opslib.domain.parameters import validate_parameters
from opslib.records.index import RecordEntry

# subcommand -> (where it is, what --help says); without one, the records are listed
SUBCOMMANDS = {
    "show": ("opslib.cli.runs_show:show_command", "One record: its outcome, section by section; --brief for a ticket."),
    "diff": ("opslib.cli.runs_diff:diff_command", "Two records: what was changed, and what came of it."),
    "timeline": (
        "opslib.cli.runs_timeline:timeline_command",
        "Several records on one time line, each row with its evidence.",
    ),
    "incident": (
        "opslib.cli.runs_incident:incident_command",
        "A post-mortem's draft of what the records of a ticket say.",
    ),
    "export": ("opslib.cli.runs_export:export_command", "Copy a record: as PDF as well, or under pseudonyms."),
    "verify": ("opslib.cli.runs_verify:verify_command", "Whether records are as they were sealed, and by whom."),
}
NEWEST = 20


@click.group(
    "runs", cls=LazyGroup, table=SUBCOMMANDS, alone="`opslib runs` alone lists them", invoke_without_command=True
)
@runs_dir_option
@which_options
@click.option("--runbook", default="", help="Only runs of this runbook (name or number).")
@click.option("--state", "--outcome", "state", default=ANY, show_default=True, help="Only runs that ended so.")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=NEWEST, show_default=True, help="Only the newest N.")
@click.option("--all", "is_all", is_flag=True, help="All that match, however many.")
@json_option
@click.pass_context
def runs_command(
    ctx: click.Context, /, runs_dir: Path | None, limit: int, is_all: bool, as_json: bool, **wanted: str
) -> int:
    """List the records of earlier runs, newest first; with a command, look at some of them.

    A record is named by its time as listed, by a part of its folder's name, by its path, or `last`, `last~1`, ...
    Exit code 0, however the runs ended and also where none matches; 4: refused.
    """
    if ctx.invoked_subcommand is not None:  # its own options count over those before its name
        ctx.default_map = {ctx.invoked_subcommand: {"runs_dir": runs_dir, "as_json": as_json, **wanted}}
        return 0
    validate_parameters("60-review-runs", wanted)
    place = runs_dir or default_runs_dir()
    found = select_records(place, limit=None, **wanted)
    if _close_killed(found):
        found = select_records(place, limit=None, **wanted)
    entries = found if is_all else found[:limit]
    if as_json:
        records = [_document(entry) for entry in entries]
        show(json.dumps({"n_matching": len(found), "records": records}, ensure_ascii=False))
    elif not entries:
        n_records = len(select_records(place))
        show(
            f"none of {n_records} records in {place} matches" if n_records else f"no records in {place}",
            file=sys.stderr,
        )
    else:
        show("\n".join(list_lines(entries)))
        if len(entries) < len(found):
            show(f"{len(entries)} of {len(found)} records; --all lists all", file=sys.stderr)
    return 0


def _close_killed(entries: list[RecordEntry]) -> int:
    """Write the end of the records whose run was killed; nothing is loaded where there is none."""
    killed = [Path(entry.folder) for entry in entries if entry.status == "interrupted" and entry.ended_at is None]
    if not killed:
        return 0
    from opslib.app.closing import close_killed_runs  # noqa: PLC0415 - brings papermill

    return close_killed_runs(killed)


def _document(entry: RecordEntry) -> dict[str, Any]:
    return {**entry.model_dump(mode="json"), "shown_state": entry.shown_state}
