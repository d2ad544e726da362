"""`opslib rehearse`: the whole deploy on a practice host."""

from pathlib import Path

import click

from opslib.app.given import read_given
from opslib.cli.running import tell_run

RUNBOOK = "90-deploy"


@click.command("rehearse")
@click.option("--scenario", default="sampler-oom", show_default=True, help="What goes wrong.")
@click.option("-p", "--parameter", "words", multiple=True, metavar="NAME=VALUE", help="One parameter of 90-deploy.")
@click.option("--runs-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the record goes [runs/].")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, the story on error.")
def rehearse_command(scenario: str, words: tuple[str, ...], runs_dir: Path | None, as_json: bool) -> int:
    """Deploy a 230B model on a practice host: no GPU, no root and no network needed.

    It runs the runbook 90-deploy over a real SSH connection, and leaves a record to read.
    """
    given = {"consent": "given", **read_given(RUNBOOK, (), words), "host": f"rehearsal:{scenario}"}
    return tell_run(RUNBOOK, given, runs_dir=runs_dir, as_json=as_json)
