"""`opslib rehearse`: the whole deploy on a practice host."""

import json
from pathlib import Path

import click

from opslib.app.binding import check_alias
from opslib.app.given import read_given
from opslib.app.scenario_table import scenario_rows
from opslib.cli.running import tell_run
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.rehearsal.scenarios import load_scenario

RUNBOOK = "90-deploy"


@click.command("rehearse")
@click.option("--scenario", default="sampler-oom", show_default=True, help="What goes wrong.")
@click.option("--list", "is_list", is_flag=True, help="List the scenarios and how the deploy comes out.")
@click.option("-p", "--parameter", "words", multiple=True, metavar="NAME=VALUE", help="One parameter of 90-deploy.")
@click.option("--runs-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the record goes [runs/].")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, the story on error.")
def rehearse_command(
    scenario: str, words: tuple[str, ...], runs_dir: Path | None, *, is_list: bool, as_json: bool
) -> int:
    """Deploy a 230B model on a practice host: no GPU, no root and no network needed.

    It runs the runbook 90-deploy over a real SSH connection, and leaves a record to read. The host itself ends with
    the command.
    """
    if is_list:
        _list(as_json=as_json)
        return 0
    host = f"rehearsal:{scenario}"
    check_alias(host)
    own = load_scenario(scenario).parameters
    given = {"consent": "given", **own, **read_given(RUNBOOK, (), words), "host": host}
    return tell_run(RUNBOOK, given, runs_dir=runs_dir, as_json=as_json)


def _list(*, as_json: bool) -> None:
    rows = list(scenario_rows())
    if as_json:
        show(json.dumps({"scenarios": [row._asdict() for row in rows]}, ensure_ascii=False))
        return
    shown = [[row.name, row.state, str(row.exit_code), row.cause, row.sentence] for row in rows]
    show("\n".join(plain_table(("scenario", "outcome", "exit", "cause", "what happens"), shown)))
