"""`opslib diagnose`: the cause of a crash from a journal or a log, offline."""

import io
import json
from itertools import chain
from pathlib import Path
from typing import IO

import click

from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.diagnosis import diagnose
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.journal_text import Format, parse_input
from opslib.domain.verdict_card import VerdictCard
from opslib.errors import BadParameter
from opslib.views.diagnosis import verdict_text

_HEAD = 8192  # bytes that are looked at to tell whether it is text
_MAX_STRANGE = 0.3  # share of characters that no text has; a log cut by a power loss has some
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@click.command("diagnose")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--format", "input_format", type=click.Choice(["auto", "journal", "text"]), default="auto", show_default=True
)
@click.option(
    "--show",
    "properties",
    type=click.Path(dir_okay=False, path_type=Path, exists=True),
    help="Saved `systemctl show UNIT`.",
)
@json_option
def diagnose_command(file: IO[bytes], input_format: Format, properties: Path | None, as_json: bool) -> int:
    """Name the cause of a crash in FILE (- for standard input): `journalctl -o json --all`, or plain text.

    Exit code 0: nothing is wrong; 2: a cause was found; 3: unknown.
    """
    entries = _entries(file, input_format)
    status = parse_unit_show(properties.read_text("utf-8", "replace")) if properties else None
    diagnosis = diagnose(entries, status=status)
    if as_json:
        show(json.dumps(diagnosis.model_dump(mode="json", exclude={"captured"}), ensure_ascii=False))
    else:
        show(verdict_text("", VerdictCard(diagnosis=diagnosis)))
    return diagnosis.exit_code


def _entries(file: IO[bytes], input_format: Format) -> tuple[JournalEntry, ...]:
    """The entries of a file; what is plainly no text is refused unless a format is given."""
    head = file.read(_HEAD)
    if head.startswith(_UTF_16):
        return parse_input(head + file.read(), input_format)
    if input_format == "auto" and _is_binary(head):
        name = getattr(file, "name", "-")
        hint = "unpack it, or save the journal with `journalctl -o json --all`; --format text reads it all the same"
        raise BadParameter(f"{name} is not text", hint=hint)
    return parse_input(chain(io.BytesIO(head + file.readline()), file), input_format)


def _is_binary(head: bytes) -> bool:
    text = head.decode("utf-8", "replace")
    strange = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\f\x1b") for char in text)
    return strange > _MAX_STRANGE * len(text)
