"""`opslib runs show`: one record on a screen, or in fifteen lines for a ticket."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option
from opslib.cli.showing import show
from opslib.domain.run_brief import brief
from opslib.records.find import find_record
from opslib.records.kept import read_run
from opslib.views.record_panel import record_panel


@click.command("show")
@click.argument("record", default="last")
@click.option("--brief", "is_brief", is_flag=True, help="Fifteen lines at most, for a ticket or a hand-over.")
@runs_dir_option
@json_option
def show_command(record: str, runs_dir: Path | None, *, is_brief: bool, as_json: bool) -> int:
    """Show RECORD: `last`, `last~1`, its time as listed, its path, its folder's name or a part of it.

    The exit code is 0 whatever the run's own was: that is in the answer.
    """
    path = find_record(runs_dir or default_runs_dir(), record)
    run = read_run(path)
    if as_json:
        told = {"lines": brief(run)} if is_brief else run.record.model_dump(mode="json")
        show(json.dumps({"record": str(path), **told}, ensure_ascii=False))
    elif is_brief:
        show("\n".join(brief(run)))
    else:
        files = sorted(file.name + "/" * file.is_dir() for file in path.iterdir() if not file.name.startswith("."))
        show(record_panel(run.record, name=str(path), files=files).text)
    return 0
