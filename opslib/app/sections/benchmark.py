"""How fast is it?"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from opslib.app.run import Run, SectionResult
from opslib.app.screen import Screen
from opslib.app.section import Answer, waiting_section
from opslib.app.sections.crash import explain
from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport, Slo
from opslib.domain.benchmark_formats import levels_csv, vllm_result
from opslib.domain.launch import LaunchEvent, LaunchStatus, UnitSeen
from opslib.domain.load import LevelShape, LoadSpec, SweepBounds, closed_levels
from opslib.domain.states import CheckResult, State, worst
from opslib.domain.steadiness import check_steadiness
from opslib.records.folder import RunFolder
from opslib.views.benchmark import COLUMNS, BenchmarkView, level_row
from opslib.views.benchmark_panels import distribution_panels, longest, sweep_panels, time_panels
from opslib.views.figures import FigureDisplay, LiveDisplay, alt_text
from opslib.views.shown import Shown
from opslib.workflow.benchmark import engine_python, run_benchmark
from opslib.workflow.investigate import wait_until_ended
from opslib.workflow.running import unit_gpus
from opslib.workflow.steadiness import watched_service

FIGURE, FIGURE_MORE = "benchmark.png", "benchmark-spread.png"


@waiting_section("benchmark")
async def benchmark(run: Run) -> Answer:
    """Throughput and latencies at each concurrency level, measured on the host."""
    run.answers.pop("benchmark-screen", None)
    report, steady, invocation_id = await asyncio.to_thread(_measure, run)
    run.answers["benchmark"] = report
    view = BenchmarkView(report, has_figure=False)
    rows = [[str(cell) for cell in level_row(level)] for level in report.levels]
    run.tell("table", "", section="benchmark", columns=list(COLUMNS), rows=rows)
    if report.levels:
        _show_figures(run, report)
        keep_formats(run.folder, report)
    return _judged(run, report, steady, invocation_id), Shown(view.html, view.text)


def _judged(run: Run, report: BenchmarkReport, steady: CheckResult, invocation_id: str) -> SectionResult:
    """The figures, and whether the service stayed well meanwhile; one that ended has a cause."""
    value = {**report.model_dump(mode="json"), "steadiness": steady.model_dump(mode="json")}
    if steady.state is State.CRITICAL:
        wait_until_ended(run.host, run.parameters.unit, invocation_id)
        _, diagnosis = explain(run, invocation_id)
        value["diagnosis"] = diagnosis.model_dump(mode="json")
        summary = f"{steady.summary}: {diagnosis.cause}: {diagnosis.summary}"
        cause = None if diagnosis.cause in {"none", "unknown"} else diagnosis.cause
        return SectionResult(state=State.CRITICAL, summary=summary, value=value, cause=cause)
    is_steady = steady.state is not State.WARNING
    summary = report.summary if is_steady else f"{report.summary}; {steady.summary}"
    state = report.state if is_steady else worst([report.state, steady.state])
    return SectionResult(state=state, summary=summary, value=value, is_headline=True)


def _invocation(run: Run, events: Iterable[LaunchEvent]) -> str:
    """The start that serves: the one that this run has launched, else the first that was seen."""
    status: LaunchStatus | None = run.answers.get("launch")
    seen = (event.status.invocation_id for event in events if isinstance(event, UnitSeen))
    return status.invocation_id if status else next(filter(None, seen), "")


def _show_figures(run: Run, report: BenchmarkReport) -> None:
    """The figures as pictures that need no JavaScript, in the notebook and beside it; the curve where it was live."""
    curve = FigureDisplay(sweep_panels(report.levels, slo=report.slo), alt_text(report.levels))
    _screen(run).paint(curve)
    run.folder.add_evidence(FIGURE, curve.png)
    watched = longest(report.levels)
    more = (*distribution_panels(report.levels), *time_panels(watched))
    if more:
        words = f"Figure: how ttft and itl are spread at each level, and what server and GPUs did at {watched.name}."
        shown = FigureDisplay(more, words)
        Screen().paint(shown)
        run.folder.add_evidence(FIGURE_MORE, shown.png)


def _screen(run: Run) -> Screen:
    """The place of the curve: live while the load runs, the picture afterwards."""
    return run.answers.setdefault("benchmark-screen", Screen())  # type: ignore[no-any-return]


def keep_formats(folder: RunFolder, report: BenchmarkReport) -> None:
    """The figures as other tools read them: JSON, CSV, and one file per level as `vllm bench serve` saves it."""
    at = datetime.now(UTC)
    folder.add_evidence("benchmark.json", report.model_dump_json(indent=1).encode())
    folder.add_evidence("benchmark.csv", levels_csv(report.levels).encode())
    for level in report.levels:
        name = f"vllm-bench-{level.name}.json".replace(" ", "-").replace("/", "-per-").replace(",", "")
        folder.add_evidence(name, json.dumps(vllm_result(report, level, at=at)).encode())


def _measure(run: Run) -> tuple[BenchmarkReport, CheckResult, str]:
    """The sweep, with an eye on the service as long as it lasts, and the start that was measured."""
    unit = run.parameters.unit
    with watched_service(run.host, unit, port=run.parameters.port) as watched:
        report = _sweep(run)
        if report.state is not State.OK:
            watched.settle()
    invocation_id = _invocation(run, watched.events)
    return report, check_steadiness(watched.events, unit=unit, invocation_id=invocation_id), invocation_id


def _sweep(run: Run) -> BenchmarkReport:
    parameters = run.parameters
    slo = slo_of(parameters)
    seen: dict[str, BenchmarkLevel] = {}

    def progress(event: Mapping[str, Any] | BenchmarkLevel) -> None:
        if isinstance(event, BenchmarkLevel):
            text = f"{event.name}: {event.output_throughput:,.0f} {event.counted_in}/s"
            run.tell("progress", text, section="benchmark")
            seen[event.name] = event
            if not run.is_headless:  # a plot that moves while the load runs
                levels = sorted(seen.values(), key=lambda level: (level.request_rate or 0, level.concurrency))
                _screen(run).paint(LiveDisplay(sweep_panels(levels, slo=slo), alt_text(levels)))

    return run_benchmark(
        run.host,
        port=parameters.port,
        model=parameters.client_model_name,
        load=load_of(parameters),
        deadline_s=parameters.benchmark_deadline_s,
        slo=slo,
        gpus=_gpus(run),
        python=engine_python(run.host),
        on_progress=progress,
    )


def load_of(parameters: Any) -> LoadSpec:
    """The load that the parameters describe: streams, then rates of an open loop; or a sweep until it is full."""
    levels = closed_levels(parameters.concurrency_levels)
    levels += tuple(LevelShape(arrival="poisson", rate=rate) for rate in parameters.request_rates)
    sweep = None
    if parameters.max_concurrency:
        bounds = {"ttft_ms": parameters.slo_ttft_ms, "tpot_ms": parameters.slo_tpot_ms}
        levels, sweep = (), SweepBounds(max_concurrency=parameters.max_concurrency, **bounds)
    return LoadSpec(
        levels=levels,
        sweep=sweep,
        requests_per_stream=parameters.requests_per_stream,
        repeats=parameters.benchmark_repeats,
        input_tokens=parameters.input_tokens,
        output_tokens=parameters.output_tokens,
    )


def slo_of(parameters: Any) -> Slo | None:
    """What users accept, where the parameters say it."""
    if parameters.slo_ttft_ms is None and parameters.slo_tpot_ms is None:
        return None
    return Slo(ttft_ms=parameters.slo_ttft_ms, tpot_ms=parameters.slo_tpot_ms)


def _gpus(run: Run) -> tuple[int, ...]:
    """The GPUs that the unit uses, to be watched meanwhile."""
    given = getattr(run.parameters, "gpus", None)
    return tuple(given) if given is not None else unit_gpus(run.host, run.parameters.unit)
