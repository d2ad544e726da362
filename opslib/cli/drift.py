"""`opslib drift`: what differs between hosts that should be alike."""

import json
import sys
from datetime import UTC, datetime
from time import monotonic

import click

from opslib.app.drift import find_drift
from opslib.app.survey import chosen_aliases, standing_in
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.drift import DriftReport
from opslib.views.drift import drift_report


@click.command("drift")
@click.option("--hosts", "given", multiple=True, metavar="LABEL|ALIAS", help="Compare these; may be repeated [all].")
@click.option("-u", "--unit", "units", multiple=True, help="Compare this unit, not all engines; may be repeated.")
@json_option
def drift_command(given: tuple[str, ...], units: tuple[str, ...], *, as_json: bool) -> int:
    """Say what differs between hosts that should be alike, outliers first, and what would align each.

    Unit files, the process's own flags, variables and limits, vLLM, driver, kernel, Python, GPUs, the model and its
    chat template. Of variables the names are told, and whether values are alike; never a value. Changes nothing.
    Exit code 0: alike; 1: something differs; 3: nothing differs, but not everything is known; 4: refused.
    """
    asked_at, start = datetime.now(UTC), monotonic()
    words = tuple(part for word in given for part in word.split(",") if part)
    if said := standing_in(words):
        show(said, file=sys.stderr)
    report = find_drift(chosen_aliases(words), units)
    duration_s = round(monotonic() - start, 3)
    if as_json:
        show(json.dumps(_document(report, asked_at, duration_s), ensure_ascii=False))
    else:
        show(drift_report(report).text)
        show(f"\n{len(report.hosts)} hosts compared in {duration_s:.1f} s", file=sys.stderr)
    return report.state.exit_code


def _document(report: DriftReport, asked_at: datetime, duration_s: float) -> dict[str, object]:
    document = report.model_dump(mode="json")
    return {**document, "compared_at": asked_at.isoformat(), "duration_s": duration_s}
