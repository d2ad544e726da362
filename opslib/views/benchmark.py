"""What a benchmark shows: a sentence, a table of the numbers, the figure; all of it static."""

from collections.abc import Mapping
from typing import Any

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport, Percentiles
from opslib.domain.states import State
from opslib.views.benchmark_panels import sweep_panels
from opslib.views.figures import alt_text, svg_of
from opslib.views.tables import number, table, text_table
from opslib.views.theme import headline, note, state_text

COLUMNS = (
    "concurrency",
    "requests",
    "errors",
    "output tokens/s",
    "requests/s",
    "ttft_ms p50",
    "ttft_ms p99",
    "tpot_ms p50",
    "tpot_ms p99",
    "itl_ms p99",
    "e2e_latency_ms p99",
)

_DOUBT = "* marked levels (hollow in the figure): the reason named made them look slower or better than the service is"


class BenchmarkView:
    """A benchmark report that reads the same in a notebook, in exported HTML and in a terminal.

    GitHub strips the inline figure: where a notebook shows the picture too, pass `has_figure=False`.
    """

    def __init__(self, report: BenchmarkReport, *, has_figure: bool = True) -> None:
        self.report = report
        self.has_figure = has_figure

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """HTML with an inline figure, and aligned text."""
        del include, exclude
        return {"text/html": self.html, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text

    @property
    def html(self) -> str:
        """Headline, table, notes and the figure as inline SVG."""
        report = self.report
        parts = [headline(report.state, report.summary, host=report.host)]
        if report.levels:
            parts.append(table([level_row(level) for level in report.levels], COLUMNS, caption=_caption(report)))
        parts += [note(line) for line in notes(report)]
        if report.levels and self.has_figure:
            svg = svg_of(sweep_panels(report.levels, slo=report.slo)).replace(
                "<svg ", '<svg role="img" style="max-width:100%" ', 1
            )
            parts.append(f'<figure style="margin:8px 0" aria-label="{alt_text(report.levels)}">{svg}</figure>')
        return "\n".join(parts)

    @property
    def text(self) -> str:
        """The same as aligned text."""
        report = self.report
        where = f"{report.host}: " if report.host else ""
        parts = [f"{state_text(report.state)}  {where}{report.summary}"]
        if report.levels:
            parts.append(text_table([level_row(level) for level in report.levels], COLUMNS))
        return "\n".join([*parts, *notes(report)])


def progress_line(line: Mapping[str, Any]) -> str:
    """How far a level is, from a progress line of the load generator.

    >>> line = {"concurrency": 4, "n_done": 3, "n_requests": 8, "n_errors": 0, "n_chunks": 1900, "elapsed_s": 2.5}
    >>> progress_line(line)
    'concurrency 4: 3 of 8 requests, 1,900 chunks in 2.5 s'
    """
    failed = f", {line['n_errors']:,} failed" if line["n_errors"] else ""
    done = f"{line['n_done']:,} of {line['n_requests']:,} requests{failed}"
    return f"concurrency {line['concurrency']}: {done}, {line['n_chunks']:,} chunks in {line['elapsed_s']:.1f} s"


def level_row(level: BenchmarkLevel) -> tuple[object, ...]:
    """One level as a row of COLUMNS."""
    return (
        level.name.removeprefix("concurrency ") + ("" if level.is_valid else " *"),
        level.n_requests,
        level.n_errors,
        number(level.output_throughput),
        number(level.request_throughput, 2),
        *_parts(level.ttft_ms, "p50", "p99"),
        *_parts(level.tpot_ms, "p50", "p99", digits=1),
        *_parts(level.itl_ms, "p99", digits=1),
        *_parts(level.e2e_latency_ms, "p99"),
    )


def notes(report: BenchmarkReport) -> tuple[str, ...]:
    """What stands below the table: why a level is marked, every check that is not ok, and its evidence."""
    marked = [f"* {level.name}: {'; '.join(level.why_invalid)}" for level in report.levels if not level.is_valid]
    checks = [check for check in report.checks if check.state is not State.OK]
    told = [f"{check.name}: {check.summary}" for check in checks if check.summary != report.summary]
    evidence = [line for check in checks if check.name == "errors" for line in check.evidence]
    evidence += [line for check in report.checks if check.name == "answers" for line in check.evidence]
    chunks = ["the server counts no tokens: chunks are counted instead"] if _counts_chunks(report) else []
    return (*marked, *([_DOUBT] if marked else []), *told, *evidence, *chunks)


def _counts_chunks(report: BenchmarkReport) -> bool:
    return any(level.counted_in == "chunks" for level in report.levels)


def _caption(report: BenchmarkReport) -> str:
    unit = "chunks" if _counts_chunks(report) else "tokens"
    sent = sum(level.total_input_tokens for level in report.levels)
    received = sum(level.total_output_tokens for level in report.levels)
    model = f"{report.model}, " if report.model else ""
    return f"{model}{sent:,} tokens in, {received:,} {unit} out; latencies in ms, measured on the host"


def _parts(figure: Percentiles | None, *names: str, digits: int = 0) -> tuple[str, ...]:
    return tuple(number(getattr(figure, name) if figure else None, digits) for name in names)
