"""`opslib diagnose`: the cause of a crash from a journal or a log, offline."""

import json
from pathlib import Path
from typing import IO

import click

from opslib.domain.diagnosis import diagnose
from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.journal_text import Format, parse_input
from opslib.domain.verdict_card import VerdictCard
from opslib.views.diagnosis import verdict_text


@click.command("diagnose")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format", "input_format", type=click.Choice(["auto", "journal", "text"]), default="auto", show_default=True
)
@click.option(
    "--show", type=click.Path(dir_okay=False, path_type=Path, exists=True), help="Saved `systemctl show UNIT`."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def diagnose_command(file: IO[bytes], input_format: Format, show: Path | None, as_json: bool) -> int:
    """Name the cause of a crash in FILE (- for standard input): `journalctl -o json --all`, or plain text.

    Exit code 0: nothing is wrong; 2: a cause was found; 3: unknown.
    """
    entries = parse_input(file, input_format)
    status = parse_unit_show(show.read_text("utf-8", "replace")) if show else None
    diagnosis = diagnose(entries, status=status)
    if as_json:
        print(json.dumps(diagnosis.model_dump(mode="json", exclude={"captured"}), ensure_ascii=False))
    else:
        print(verdict_text("", VerdictCard(diagnosis=diagnosis)))
    return diagnosis.exit_code
