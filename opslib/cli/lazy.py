"""A click group made from a table: nothing is imported before a command is called, and a misspelt one is named."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from opslib.cli.showing import silence
from opslib.errors import CouldNotFindOut

# name -> (where the command is, as module:name; what --help says)
CommandTable = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, *args: Any, table: CommandTable, alone: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table
        self.alone = alone  # what the group does without a command, for whoever guesses one

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.table:
            return None
        module, name = self.table[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader that left (`| head`) is not Click's own exit code 1, which is a warning's here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            silence(sys.stdout)
            return CouldNotFindOut.exit_code

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.table, n=1, cutoff=0.6)
            known = "; ".join(filter(None, (f"known: {', '.join(self.table)}", self.alone)))
            hint = f"did you mean {close[0]}?" if close else known
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.table.items()])
