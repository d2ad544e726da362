"""Two clients' figures of the same levels, below each other in one table."""

from collections.abc import Mapping

from opslib.domain.benchmark import BenchmarkReport
from opslib.domain.states import State
from opslib.views.benchmark import COLUMNS, level_row
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown

_NOTE = (
    "Python clients burn a core at a few dozen streams and then report their own pace: where they differ from ours at "
    "high concurrency, look at their CPU first. e2e latency and tpot count to the last token, as here."
)


def clients_panel(host: str, reports: Mapping[str, BenchmarkReport]) -> Shown:
    """A row for each level and client."""
    ordered = [
        (name, level)
        for level_name in dict.fromkeys(level.name for report in reports.values() for level in report.levels)
        for name, report in reports.items()
        for level in report.levels
        if level.name == level_name
    ]
    rows = [(name, *level_row(level)) for name, level in ordered]
    (_, last) = list(reports.items())[-1]
    return answer_panel(host, State.OK, last.summary, rows=rows, columns=("client", *COLUMNS), notes=[_NOTE])
