"""The options that verbs share, each under one name with one meaning."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from opslib.errors import BadParameter

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

yes_option = click.option("--yes", "is_yes", is_flag=True, help="Do it without asking; it is shown all the same.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
json_story_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, the story on error."
)
file_option = click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="YAML file of parameters."
)


def parameter_option(sentence: str = "One parameter; may be repeated.") -> Decorator:
    """`-p NAME=VALUE`, with what --help says of it."""
    return click.option("-p", "--parameter", "words", multiple=True, metavar="NAME=VALUE", help=sentence)


def runs_dir_option(sentence: str) -> Decorator:
    """`--runs-dir`, which may be made; the sentence says whether records are read or written."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--runs-dir", type=kind, help=f"{sentence} [runs/].")


def given_names() -> list[str]:
    """The parameters of the command that is being called which its command line gives."""
    context = click.get_current_context()
    return [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def refuse_given(names: Collection[str], why: str) -> None:
    """Refuse an option that would be passed over: whoever gives it takes it to count. Raises BadParameter."""
    given = given_names()
    for option in click.get_current_context().command.params:
        if option.name in names and option.name in given:
            raise BadParameter(f"{option.opts[-1]}: {why}")
