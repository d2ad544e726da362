"""`opslib runs timeline`: one time line over several records."""

import json
import shutil
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.records import read_runs
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option, which_options
from opslib.cli.showing import show
from opslib.domain.run_timeline import timeline
from opslib.views.timeline import timeline_lines

_WIDEST = 100


@click.command("timeline")
@click.argument("records", nargs=-1)
@which_options
@click.option("--all", "is_whole", is_flag=True, help="Every line of the journals and the kernel.")
@click.option("--wide", "is_wide", is_flag=True, help="Lines as long as they are.")
@runs_dir_option
@json_option
def timeline_command(
    records: tuple[str, ...], runs_dir: Path | None, *, is_whole: bool, is_wide: bool, as_json: bool, **wanted: str
) -> int:
    """What happened, over RECORDS or those that match: journal, kernel, GPUs, health, operators, in UTC.

    A host's times are corrected by the difference of clocks that its record keeps. At the end of each row: file and
    line that say so. Exit code 0, whatever happened; 4: refused.
    """
    if not records and not any(wanted.values()):
        raise click.UsageError("say which records: --ticket T, or their names")
    told = timeline(read_runs(runs_dir or default_runs_dir(), records, **wanted), is_whole=is_whole)
    if as_json:
        show(json.dumps(told.model_dump(mode="json"), ensure_ascii=False))
    else:
        width = 10_000 if is_wide else min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
        show("\n".join(line.rstrip() for line in timeline_lines(told, width=width)))
    return 0
