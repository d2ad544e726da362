"""`opslib runs export`: a record for somebody else."""

from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.exporting import export_record, exported
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option
from opslib.cli.showing import show
from opslib.records.find import find_record


@click.command("export")
@click.argument("record", default="last")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the copy [runs/exports].",
)
@click.option("--pdf", "has_pdf", is_flag=True, help="Print its page as record.pdf as well (by Chromium).")
@click.option(
    "--pseudonyms", "has_pseudonyms", is_flag=True, help="Hosts, addresses and users become host-1, user-1, ..."
)
@runs_dir_option
@json_option
def export_command(
    record: str, to: Path | None, runs_dir: Path | None, *, has_pdf: bool, has_pseudonyms: bool, as_json: bool
) -> int:
    """Copy RECORD (named as for `show`) with its seal, and say where the copy lies.

    A copy under pseudonyms is sealed anew. Exit code 3: the copy or its PDF can't be made; 4: it is there already.
    """
    place = runs_dir or default_runs_dir()
    path = find_record(place, record)
    to = to or place / "exports"
    to.mkdir(parents=True, exist_ok=True)
    copy = export_record(path, to.resolve(), has_pdf=has_pdf, has_pseudonyms=has_pseudonyms)
    show(exported(copy) if as_json else f"{copy}")
    return 0
