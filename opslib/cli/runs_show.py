"""`opslib runs show`: one record on a screen."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.cli.runs_options import json_option, runs_dir_option
from opslib.cli.showing import show
from opslib.errors import CouldNotFindOut
from opslib.records.find import find_record
from opslib.records.folder import RunFolder
from opslib.views.record_panel import record_panel


@click.command("show")
@click.argument("record", default="last")
@runs_dir_option
@json_option
def show_command(record: str, runs_dir: Path | None, *, as_json: bool) -> int:
    """Show RECORD: `last`, `last~1`, its path, its folder's name or a part of it.

    The exit code is 0 whatever the run's own was: that is in the answer.
    """
    path = find_record(runs_dir or default_runs_dir(), record)
    known = RunFolder.open(path).read_record()
    if known is None:
        raise CouldNotFindOut(f"{path} holds no record.json")
    if as_json:
        show(json.dumps({"record": str(path), **known.model_dump(mode="json")}, ensure_ascii=False))
    else:
        files = sorted(file.name + "/" * file.is_dir() for file in path.iterdir() if not file.name.startswith("."))
        show(record_panel(known, name=str(path), files=files).text)
    return 0
