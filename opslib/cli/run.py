"""`opslib run`: a runbook headless."""

import json
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import find_runbook, list_runbooks
from opslib.app.given import read_given
from opslib.cli.options import file_option, json_story_option, parameter_option, runs_dir_option
from opslib.cli.running import given_options, headless_options, tell_run
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.domain.parameters import schema_of


class _RunCommand(click.Command):
    """Names the runbooks at the end of its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Runbooks"):
            formatter.write_text(", ".join(list_runbooks()))
        formatter.write("\nThe parameters of one: opslib run RUNBOOK --parameters\n")


@click.command("run", cls=_RunCommand)
@click.argument("runbook")
@file_option
@parameter_option()
@headless_options
@click.option("--dry-run", is_flag=True, help="Every read, no change: show the plan, and stop before consent.")
@click.option("--parameters", "is_list", is_flag=True, help="Only list the parameters of RUNBOOK and their defaults.")
@runs_dir_option("Where the record goes")
@json_story_option
def run_command(
    runbook: str,
    files: tuple[Path, ...],
    words: tuple[str, ...],
    runs_dir: Path | None,
    *,
    is_list: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run RUNBOOK (90-deploy, or just deploy) headless and keep its record.

    Parameters are checked before any host is contacted. The exit code is that of the outcome. The options notify,
    notify_on, timeout_s and retries may stand in a file of parameters as well.
    """
    name, _ = find_runbook(runbook)
    if is_list:
        _list_parameters(name, as_json=as_json)
        return 0
    given = {**read_given(name, files, words), **given_options(options)}
    return tell_run(name, given, runs_dir=runs_dir, as_json=as_json)


def _list_parameters(runbook: str, *, as_json: bool) -> None:
    """Name, default and description of each parameter, in the schema's order."""
    schema = schema_of(runbook)
    defaults = schema().model_dump(mode="json")
    rows: list[dict[str, Any]] = [
        {"name": name, "default": defaults[name], "description": field.description or ""}
        for name, field in schema.model_fields.items()
    ]
    if as_json:
        show(json.dumps({"runbook": runbook, "parameters": rows}, ensure_ascii=False))
        return
    shown = [[row["name"], json.dumps(row["default"]), row["description"]] for row in rows]
    show("\n".join(plain_table(("parameter", "default", "what it is"), shown)))
