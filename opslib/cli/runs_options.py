"""The options that all commands about records share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the records are [runs/].",
)

_WHICH = (
    ("--host", "Only runs on this host."),
    ("--unit", "Only runs of this unit."),
    ("--model", "Only runs about this model (its name or path)."),
    ("--ticket", "Only runs that belong to this ticket."),
    ("--cause", "Only runs with this cause, or its family (gpu-memory)."),
    ("--since", "Only runs begun since: 2026-11-29, 2026-11-29T18:00 (UTC), or 7d, 12h ago."),
    ("--until", "Only runs begun until, in the same words."),
)


def which_options(command: Command) -> Command:
    """The options that choose records by what their runs were about."""
    for name, sentence in reversed(_WHICH):
        command = click.option(name, default="", help=sentence)(command)
    return command
