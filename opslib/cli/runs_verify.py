"""`opslib runs verify`: whether a record is as it was sealed, and by whom."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option
from opslib.cli.showing import show
from opslib.domain.states import worst
from opslib.records.find import find_record
from opslib.records.seal import SealReport, allowed_signers_file, verify_record
from opslib.views.theme import state_text


@click.command("verify")
@click.argument("names", nargs=-1, required=True, metavar="RECORD...")
@click.option(
    "--allowed-signers",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Who may sign, as in ssh-keygen(1) [$OPSLIB_ALLOWED_SIGNERS, ~/.config/opslib/allowed_signers].",
)
@runs_dir_option
@json_option
def verify_command(
    names: tuple[str, ...], allowed_signers: Path | None, runs_dir: Path | None, *, as_json: bool
) -> int:
    """Say whether RECORDs (named as for `show`) are as they were sealed, by whom, and which cell or file was altered.

    Exit codes: 0 as sealed, 1 unsigned or signed by nobody knows whom, 2 altered (or unsigned, where a file says who
    signs), 3 not sealed, 4 no such record.
    """
    signers = allowed_signers or allowed_signers_file()
    place = runs_dir or default_runs_dir()
    paths = [Path(name).resolve() if Path(name).is_dir() else find_record(place, name) for name in names]
    reports = [verify_record(path, allowed_signers=signers) for path in paths]
    if as_json:
        show(json.dumps({"records": [report.model_dump(mode="json") for report in reports]}, ensure_ascii=False))
    else:
        for report in reports:
            show("\n".join(_lines(report)))
    return worst(report.state for report in reports).exit_code


def _lines(report: SealReport) -> list[str]:
    rows = [
        f"    {alteration.what:<10}{alteration.where}{f': {alteration.detail}' if alteration.detail else ''}"
        for alteration in report.alterations
    ]
    return [f"{state_text(report.state)}  {report.record}: {report.summary}", *rows]
