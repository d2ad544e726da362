"""`opslib run`: a runbook headless."""

from pathlib import Path

import click

from opslib.app.catalogue import find_runbook
from opslib.app.given import read_given
from opslib.cli.running import tell_run


@click.command("run")
@click.argument("runbook")
@click.option("-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="YAML file of parameters.")
@click.option("-p", "--parameter", "words", multiple=True, metavar="NAME=VALUE", help="One parameter; may be repeated.")
@click.option("--runs-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the record goes [runs/].")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, the story on error.")
def run_command(
    runbook: str, files: tuple[Path, ...], words: tuple[str, ...], runs_dir: Path | None, as_json: bool
) -> int:
    """Run RUNBOOK (90-deploy, or just deploy) headless and keep its record.

    Parameters are checked before any host is contacted. The exit code is that of the outcome.
    """
    name, _ = find_runbook(runbook)
    return tell_run(name, read_given(name, files, words), runs_dir=runs_dir, as_json=as_json)
