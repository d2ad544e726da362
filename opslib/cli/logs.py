"""`opslib logs`: a unit's journal."""

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import click

from opslib.cli.acting import bound, tell
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.facts.journal import JournalEntry, journal_command, parse_journal, parse_journal_entry
from opslib.domain.moments import parse_moment
from opslib.domain.redaction import redact
from opslib.errors import BadParameter, CouldNotFindOut, UnexpectedAnswer
from opslib.workflow.facts import gather_unit_status, journal_sudo, unknown_unit


@click.command("logs")
@click.argument("host")
@click.argument("unit")
@click.option("-n", "--lines", type=click.IntRange(1, 1_000_000), default=200, show_default=True)
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on as lines come; Ctrl-C ends it.")
@click.option("--current", "is_current", is_flag=True, help="Only of the start that runs now, or ran last.")
@click.option("--since", default="", help="Only from then on: 2026-11-29T18:00 (UTC), 2h, 7d.")
@json_option
def logs_command(
    host: str, unit: str, lines: int, since: str, *, is_followed: bool, is_current: bool, as_json: bool
) -> int:
    """Show the journal of UNIT on HOST, its secrets redacted; times in UTC.

    Exit code 0, whatever it says; 3: it could not be read; 4: there is no such host or unit.
    """
    if is_followed and as_json:
        raise BadParameter("--follow never ends: it has no --json")
    moment = parse_moment(since, datetime.now(UTC))
    with bound(host) as opened:
        invocation = gather_unit_status(opened, unit).invocation_id if is_current else None
        asked = journal_command(unit, invocation_id=invocation or None, lines=None if moment else lines, since=moment)
        sudo = journal_sudo(opened)
        result = opened.run(asked, sudo=sudo, timeout_s=120)
        if not result.is_success:
            raise UnexpectedAnswer(f"journalctl: {result.error_text or result.exit_status}", host=host)
        entries = parse_journal(result.text)
        if not entries and not gather_unit_status(opened, unit).is_installed:
            raise unknown_unit(opened, unit)
        if as_json:
            show(json.dumps({"host": host, "unit": unit, "entries": _documents(entries)}, ensure_ascii=False))
            return 0
        _tell(entries)
        if not entries:
            tell(f"no line of {unit}" + (f" since {since}" if since else ""))
        if is_followed:
            after = entries[-1].cursor if entries else None
            asked = journal_command(unit, after_cursor=after, follow=True, since=None if after else datetime.now(UTC))
            with suppress(KeyboardInterrupt), opened.stream(asked, sudo=sudo) as stream:
                for line in stream:
                    with suppress(CouldNotFindOut):
                        _tell([parse_journal_entry(line)])
    return 0


def _documents(entries: Iterable[JournalEntry]) -> list[dict[str, object]]:
    keep = {"message", "priority", "realtime_at", "pid", "invocation_id", "cursor"}
    return [{**entry.model_dump(mode="json", include=keep), "message": redact(entry.message)} for entry in entries]


def _tell(entries: Iterable[JournalEntry]) -> None:
    for entry in entries:
        at = entry.realtime_at.strftime("%m-%d %H:%M:%S") if entry.realtime_at else "-"
        show(f"{at}  {redact(entry.message)}")
