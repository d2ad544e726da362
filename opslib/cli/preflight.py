"""`opslib preflight`: is a host fit for a launch?"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.app.given import read_given
from opslib.app.wanted import wanted_for
from opslib.cli.options import file_option, json_option, parameter_option
from opslib.cli.showing import show
from opslib.domain.parameters import validate_parameters
from opslib.views.preflight import preflight_text
from opslib.views.theme import state_text
from opslib.workflow.preflight import run_preflight
from opslib.workflow.verify import checkpoint_path

_RUNBOOK = "30-launch"  # whose parameters say what is to be launched


@click.command("preflight")
@click.argument("host")
@click.argument("unit")
@file_option
@parameter_option("One of 30-launch's parameters.")
@json_option
def preflight_command(host: str, unit: str, files: tuple[Path, ...], words: tuple[str, ...], *, as_json: bool) -> int:
    """Is HOST fit to launch UNIT: GPUs, driver, memory, port, flags, model, disks, limits, clock, lock?

    Changes nothing, takes no lock, asks in one round trip. Exit code 0 good, 1 a warning, 2 it would fail; what could
    not be found out is told, and decides nothing.
    """
    given = {**read_given(_RUNBOOK, files, words), "host": host, "unit": unit}
    parameters: Any = validate_parameters(_RUNBOOK, given)
    check_alias(host)
    opened = open_bound_host(host)
    try:
        report = run_preflight(opened, wanted_for(parameters, checkpoint_path(opened, parameters.model)))
    finally:
        opened.close()
    if as_json:
        show(json.dumps(report.model_dump(mode="json"), ensure_ascii=False))
    else:
        show(f"{state_text(report.state)}  {report.host}: {report.summary}\n\n{preflight_text(report)}")
        show(f"\n{len(report.checks)} checks in {report.duration_s:.1f} s", file=sys.stderr)
    return report.state.exit_code
