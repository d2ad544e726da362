"""A benchmark beside the last good one: a row per figure, the ones that decide first."""

from opslib.domain.benchmark_compare import Comparison, FigureChange
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown
from opslib.views.tables import Row

COLUMNS = ("level", "figure", "last good", "now", "worse by", "99 % interval", "verdict")


def comparison_panel(host: str, comparison: Comparison) -> Shown:
    """The verdict, what it was compared with, and every figure."""
    notes = []
    if comparison.baseline:
        notes.append(f"Compared with {comparison.baseline}; the threshold is {comparison.threshold_percent:g} %.")
    if any(not change.is_gating for change in comparison.changes):
        notes.append("Figures in brackets are told and decide nothing: a tail of a few dozen requests is chance.")
    rows = comparison_rows(comparison)
    return answer_panel(host, comparison.state, comparison.summary, rows=rows, columns=COLUMNS, notes=notes)


def comparison_rows(comparison: Comparison) -> list[Row]:
    """A row of COLUMNS for each figure."""
    ordered = sorted(comparison.changes, key=lambda change: not change.is_gating)
    return [_row(change) for change in ordered]


def _row(change: FigureChange) -> Row:
    interval = "-"
    if change.low_percent is not None and change.high_percent is not None:
        interval = f"{change.low_percent:+.1f} to {change.high_percent:+.1f} %"
    figure = change.figure.replace(".", " ")
    return (
        change.level,
        figure if change.is_gating else f"({figure})",
        f"{change.before:,.4g}" if change.before < 1000 else f"{change.before:,.0f}",
        f"{change.now:,.4g}" if change.now < 1000 else f"{change.now:,.0f}",
        f"{change.worse_percent:+.1f} %",
        interval,
        change.verdict if change.is_gating else "-",
    )
