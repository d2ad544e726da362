"""`opslib diagnose`: the cause of a crash from a journal or a log, offline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from opslib.cli.story import STATES
from opslib.domain.diagnosis import Diagnosis, diagnose
from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.journal_text import Format, parse_input
from opslib.domain.states import State

_STATES = {state.exit_code: state.value for state in State}


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
        print("\n".join(_lines(diagnosis)))
    return diagnosis.exit_code


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The verdict, the lines that decide it, what was ruled out, and the ways out."""
    symbol = STATES[_STATES[diagnosis.exit_code]][0]
    sure = f" ({diagnosis.confidence} confidence)" if diagnosis.exit_code == State.CRITICAL.exit_code else ""
    yield f"{symbol} {diagnosis.cause}{sure}  {diagnosis.summary}"
    for evidence in diagnosis.evidence:
        speaker = f"{evidence.process}: " if evidence.process else ""
        yield f"  line {evidence.line + 1:<6} {speaker}{evidence.text.strip()}"
    for ruled_out in diagnosis.ruled_out:
        yield f"  not {ruled_out.cause}: {ruled_out.reason}"
    for remedy in diagnosis.remedies:
        yield f"  remedy: {remedy.text}"
        told = (("type", remedy.command), ("costs", remedy.cost), ("check", remedy.check))
        yield from (f"    {name}: {text}" for name, text in told if text)
