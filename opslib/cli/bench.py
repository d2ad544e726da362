"""`opslib bench`: measure a unit or an endpoint, and compare two results."""

import json
from pathlib import Path

import click

from opslib.cli.lazy import LazyGroup
from opslib.cli.numbers import Number
from opslib.cli.options import json_option, runs_dir_option
from opslib.cli.showing import show
from opslib.domain.benchmark_compare import Comparison

SUBCOMMANDS = {
    "run": ("opslib.cli.bench_run:run_command", "Measure HOST UNIT from the host itself, or a URL from here."),
    "compare": ("opslib.cli.bench:compare_command", "Two recorded benchmarks: better, same, worse or inconclusive."),
}


@click.group("bench", cls=LazyGroup, table=SUBCOMMANDS)
def bench_command() -> None:
    """Measure a service, or compare two results."""


@click.command("compare")
@click.argument("before")
@click.argument("now")
@click.option("--threshold", "threshold_percent", type=Number(0.1, 1000), default=10.0, show_default=True)
@runs_dir_option("Where the records are")
@json_option
def compare_command(before: str, now: str, threshold_percent: float, runs_dir: Path | None, *, as_json: bool) -> int:
    """Compare the benchmark of record NOW with that of record BEFORE (folders, names, or `last`, `last~1`, ...).

    Exit code 0: not worse; 1: worse; 3: nothing in common.
    """
    from opslib.app.benching import compare_records  # noqa: PLC0415 - brings numpy
    from opslib.app.catalogue import default_runs_dir  # noqa: PLC0415

    comparison = compare_records(
        before, now, runs_dir=runs_dir or default_runs_dir(), threshold_percent=threshold_percent
    )
    if as_json:
        show(json.dumps(comparison.model_dump(mode="json"), ensure_ascii=False))
    else:
        _tell(comparison)
    return comparison.state.exit_code


def _tell(comparison: Comparison) -> None:
    from opslib.views.benchmark_compare import COLUMNS, comparison_rows  # noqa: PLC0415
    from opslib.views.tables import text_table  # noqa: PLC0415
    from opslib.views.theme import state_text  # noqa: PLC0415

    show(f"{state_text(comparison.state)}  {comparison.summary}")
    for difference in comparison.differences:
        show(f"  differs: {difference}")
    if comparison.changes:
        show(text_table(comparison_rows(comparison), COLUMNS))
