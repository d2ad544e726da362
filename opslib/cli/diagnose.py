"""`opslib diagnose`: the cause of a crash from a journal or a log, offline."""

import json
from pathlib import Path
from typing import IO

import click

from opslib.cli.story import STATES
from opslib.domain.diagnosis import Diagnosis, diagnose, parse_input
from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.states import State

_STATES = {"none": State.OK, "unknown": State.UNKNOWN}  # anything else is a cause


@click.command("diagnose")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format", "input_format", type=click.Choice(["auto", "journal", "text"]), default="auto", show_default=True
)
@click.option(
    "--show", type=click.Path(dir_okay=False, path_type=Path, exists=True), help="Saved `systemctl show UNIT`."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def diagnose_command(file: IO[bytes], input_format: str, show: Path | None, as_json: bool) -> int:
    """Name the cause of a crash in FILE (- for standard input): `journalctl -o json --all`, or plain text.

    Exit code 0: nothing is wrong; 2: a cause was found; 3: unknown.
    """
    entries = parse_input(file.read(), input_format)
    status = parse_unit_show(show.read_text("utf-8", "replace")) if show else None
    diagnosis = diagnose(entries, status)
    if as_json:
        print(json.dumps(diagnosis.model_dump(mode="json"), ensure_ascii=False))
    else:
        _tell(diagnosis)
    return _STATES.get(diagnosis.cause, State.CRITICAL).exit_code


def _tell(diagnosis: Diagnosis) -> None:
    symbol = STATES[_STATES.get(diagnosis.cause, State.CRITICAL).value][0]
    print(f"{symbol} {diagnosis.cause} ({diagnosis.confidence} confidence)  {diagnosis.summary}")
    for evidence in diagnosis.evidence:
        print(f"  line {evidence.line + 1}: {evidence.text}")
    for title, items in (("ruled out", diagnosis.ruled_out), ("remedy", diagnosis.remedies)):
        for item in items:
            print(f"  {title}: {item if isinstance(item, str) else getattr(item, 'summary', item)}")
