"""How fast is it?"""

import asyncio
from collections.abc import Mapping
from typing import Any

from opslib.app.run import Run, SectionResult
from opslib.app.screen import Screen
from opslib.app.section import Answer, waiting_section
from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.views.benchmark import COLUMNS, BenchmarkView, level_row
from opslib.views.figures import figure_display
from opslib.views.shown import Shown
from opslib.workflow.benchmark import run_benchmark

FIGURE = "benchmark.png"


@waiting_section("benchmark")
async def benchmark(run: Run) -> Answer:
    """Throughput and latencies at each concurrency level, measured on the host."""
    report = await asyncio.to_thread(_measure, run)
    run.answers["benchmark"] = report
    view = BenchmarkView(report, has_figure=False)
    rows = [[str(cell) for cell in level_row(level)] for level in report.levels]
    run.tell("table", report.summary, section="benchmark", columns=list(COLUMNS), rows=rows)
    if report.levels:
        _show_figure(run, report)
    value = report.model_dump(mode="json")
    result = SectionResult(state=report.state, summary=report.summary, value=value, is_headline=True)
    return result, Shown(view.html, view.text)


def _show_figure(run: Run, report: BenchmarkReport) -> None:
    """The figure as a picture that needs no JavaScript, in the notebook and beside it."""
    figure = figure_display(report.levels)
    run.folder.add_evidence(FIGURE, figure.png)
    Screen().paint(figure)


def _measure(run: Run) -> BenchmarkReport:
    parameters = run.parameters

    def progress(event: Mapping[str, Any] | BenchmarkLevel) -> None:
        if isinstance(event, BenchmarkLevel):
            text = f"concurrency {event.concurrency}: {event.output_throughput:,.0f} tokens/s"
            run.tell("progress", text, section="benchmark")

    return run_benchmark(
        run.host,
        port=parameters.port,
        model=parameters.client_model_name,
        levels=parameters.concurrency_levels,
        requests_per_stream=parameters.requests_per_stream,
        input_tokens=parameters.input_tokens,
        output_tokens=parameters.output_tokens,
        deadline_s=parameters.benchmark_deadline_s,
        on_progress=progress,
    )
