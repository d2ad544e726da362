"""The options that all commands about records share."""

from pathlib import Path

import click

runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the records are [runs/].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
