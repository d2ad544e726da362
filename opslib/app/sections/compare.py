"""Is it as fast as the last good run?"""

from contextlib import suppress
from pathlib import Path

from opslib.app.putting_back import roll_back
from opslib.app.run import Run, SectionResult
from opslib.app.screen import Screen
from opslib.app.section import Answer, section
from opslib.domain.benchmark import BenchmarkReport
from opslib.domain.benchmark_compare import LOAD_PARAMETERS, Comparison, Subject, compare_levels
from opslib.domain.canary import CanaryReport
from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.records.baselines import Baseline, find_baseline
from opslib.views.benchmark_compare import comparison_panel
from opslib.views.benchmark_panels import sweep_panels
from opslib.views.figures import FigureDisplay, alt_text
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown
from opslib.workflow.running import running_flags

_NOT_SPEED = {"--port", "--host", "--served-model-name", "--api-key", "--uvicorn-log-level", "--ssl-keyfile"}


@section("compare")
def compare(run: Run) -> Answer:
    """The figures beside those of the last good run of the same host, GPUs, weights, engine, flags and load."""
    report: BenchmarkReport | None = run.answers.get("benchmark")
    subject = subject_of(run)
    runs_dir, own = run.folder.path.parent, run.folder.path.name
    baseline = find_baseline(runs_dir, subject, besides=own)
    if report is None or not report.levels or baseline is None:
        return _alone(run, subject)
    comparison = _compared(run, baseline, subject, report)
    if comparison.verdict == "worse" and not comparison.differences:
        comparison = comparison.model_copy(update={"summary": comparison.summary + roll_back(run, "worse")})
    run.answers["comparison"] = comparison
    words = f"Figure: the same curves, the last good run ({baseline.record}) dashed. {alt_text(report.levels)}"
    Screen().paint(FigureDisplay(sweep_panels(report.levels, slo=report.slo, baseline=baseline.levels), words))
    value = {**comparison.model_dump(mode="json"), "subject": subject.model_dump(mode="json")}
    is_news = comparison.verdict in ("worse", "better") and not comparison.differences
    result = SectionResult(
        state=comparison.state, summary=comparison.summary, value=value, is_headline=is_news, is_final=True
    )
    return result, comparison_panel(run.alias, comparison)


def _compared(run: Run, baseline: Baseline, subject: Subject, report: BenchmarkReport) -> Comparison:
    return compare_levels(
        baseline.levels,
        report.levels,
        threshold_percent=run.parameters.worse_threshold_percent,
        on_worse=State(run.parameters.on_worse),
        baseline=baseline.record,
        differences=baseline.subject.differences(subject),
    )


def _alone(run: Run, subject: Subject) -> tuple[SectionResult, Shown]:
    summary = "no earlier good run of this host, these weights and this load: later ones are compared with this one"
    result = SectionResult(state=State.OK, summary=summary, value={"subject": subject.model_dump(mode="json")})
    return result, answer_panel(run.alias, State.OK, summary)


def subject_of(run: Run) -> Subject:
    """What this run measures: host, GPUs, weights and engine as the canary found them, flags, load."""
    canary: CanaryReport | None = run.answers.get("canary")
    flags: dict[str, str] = {}
    with suppress(OpslibError):
        flags = running_flags(run.host, run.parameters.unit)
    found = canary.fingerprint if canary else None
    return Subject(
        host=run.alias,
        gpus=tuple(filter(None, [found.context.get("GPUs", "")])) if found else (),
        model_digest=found.model_digest if found else "",
        engine=found.engine if found else "",
        flags={name: _told(value) for name, value in flags.items() if name not in _NOT_SPEED},
        load={name: str(getattr(run.parameters, name)) for name in LOAD_PARAMETERS},
    )


def _told(value: str) -> str:
    """A flag's value; a path below a practice host's own folder is named by its end alone."""
    return f"…/{Path(value).name}" if value.startswith("/") else value
