"""`opslib runs diff`: two records against each other."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.records import read_runs
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option
from opslib.cli.showing import show
from opslib.domain.run_diff import diff_runs
from opslib.views.run_diff import diff_panel


@click.command("diff")
@click.argument("a")
@click.argument("b", default="last")
@click.option("--all", "is_whole", is_flag=True, help="Also figures that moved no more than between any two runs.")
@runs_dir_option
@json_option
def diff_command(a: str, b: str, runs_dir: Path | None, *, is_whole: bool, as_json: bool) -> int:
    """What differs from record A to record B: parameters, flags, versions, figures, verdicts.

    A change "may explain" a figure only where a table of flags and figures says so. Exit code 0, whatever differs.
    """
    place = runs_dir or default_runs_dir()
    diff = diff_runs(*(read_runs(place, [name])[0] for name in (a, b)))
    if as_json:
        show(json.dumps({**diff.model_dump(mode="json"), "is_same": diff.is_same}, ensure_ascii=False))
    else:
        show(diff_panel(diff, is_whole=is_whole).text)
    return 0
