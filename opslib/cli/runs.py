"""`opslib runs`: the records, newest first."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.cli.story import badge_text, plain_table
from opslib.records.index import RecordEntry, list_records

_COLUMNS = ("started (UTC)", "runbook", "host", "unit", "outcome", "reason", "record")


@click.command("runs")
@click.option("--runs-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the records are [runs/].")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="List only the newest N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def runs_command(runs_dir: Path | None, limit: int | None, as_json: bool) -> int:
    """List the records of earlier runs, newest first."""
    entries = list_records(runs_dir or default_runs_dir())[:limit]
    if as_json:
        print(json.dumps({"records": [entry.model_dump(mode="json") for entry in entries]}, ensure_ascii=False))
    elif not entries:
        click.echo(f"no records in {runs_dir or default_runs_dir()}", err=True)
    else:
        print("\n".join(plain_table(_COLUMNS, [_row(entry) for entry in entries])))
    return 0


def _row(entry: RecordEntry) -> list[str]:
    started = entry.started_at.strftime("%Y-%m-%d %H:%M:%S") if entry.started_at else "-"
    reason = entry.reason if len(entry.reason) <= 70 else f"{entry.reason[:67]}..."
    return [started, entry.runbook, entry.host, entry.unit, badge_text(entry.shown_state), reason, _short(entry.folder)]


def _short(folder: str) -> str:
    """The folder as it would be typed here."""
    path = Path(folder)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
