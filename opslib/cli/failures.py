"""What went wrong, said in one line on standard error, in one document with --json, and by the exit code."""

import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from opslib.cli.showing import show, silence
from opslib.domain.redaction import redact
from opslib.errors import CouldNotFindOut, OpslibError, Refused

COULD_NOT_FIND_OUT = CouldNotFindOut.exit_code
REFUSED = Refused.exit_code


def report_failure(error: BaseException, arguments: Sequence[str]) -> int:
    """Say what went wrong; returns the exit code (3 could not find out, 4 refused)."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else COULD_NOT_FIND_OUT
    if isinstance(error, BrokenPipeError):  # the reader of our output has left, as `head` does
        silence(sys.stdout)
        return COULD_NOT_FIND_OUT
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group alone: what it has, not a mistake in one line
        with suppress(OSError, CouldNotFindOut):
            show(error.format_message(), file=sys.stderr)
        return REFUSED
    kind, said, code = _said(error)
    lines = [redact(line) for line in said]  # a mistyped secret is quoted in what is wrong with it
    with suppress(OSError, CouldNotFindOut):  # nobody can be told
        show("\n".join(f"opslib: {line}" for line in lines), file=sys.stderr)
    if "--json" in arguments:
        show(json.dumps({"error": {"kind": kind, "problems": lines}, "exit_code": code}, ensure_ascii=False))
    return code


def _said(error: BaseException) -> tuple[str, list[str], int]:
    if isinstance(error, OpslibError):
        return type(error).__name__, str(error).splitlines(), error.exit_code
    if isinstance(error, click.UsageError):
        return "UsageError", [_usage(error)], REFUSED
    if isinstance(error, click.ClickException):
        return "UsageError", [error.format_message()], REFUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        by = str(error.__cause__ if isinstance(error, click.Abort) and error.__cause__ else error)
        return "Interrupted", [f"interrupted by {by}" if by else "interrupted"], COULD_NOT_FIND_OUT
    line = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return type(error).__name__, [f"{line} (a fault of opslib; traceback kept in {_kept()})"], COULD_NOT_FIND_OUT


def _usage(error: click.UsageError) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx else "opslib"
    return f"{message}; see `{path} --help`"


def _kept() -> str:
    """Keep the traceback in a file that only this user can read; it may name secrets."""
    with tempfile.NamedTemporaryFile("w", prefix="opslib-", suffix=".traceback", delete=False) as file:
        file.write(traceback.format_exc())
    return file.name
