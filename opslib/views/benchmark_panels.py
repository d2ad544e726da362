"""What the benchmark's figures draw, as values: the live and the static form are made from the same panels."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from opslib.domain.benchmark import BenchmarkLevel, GpuSample, Histogram, Slo
from opslib.domain.benchmark_judge import find_knee
from opslib.views.theme import BLUE, MUTED, ORANGE

# From few streams to many: told apart in print and by those who see red and green alike (after ColorBrewer's YlGnBu).
RAMP = ("#0969da", "#1b9e9e", "#6a51a3", "#bc4c00", "#9e1b6a", "#57606a")
_GIB = 2**30
MIN_SAMPLES = 3  # points that make a line


class Line(NamedTuple):
    """One line of a panel; a hollow point is one whose level is marked, a dashed line an earlier run."""

    name: str
    colour: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    hollow: tuple[bool, ...] = ()
    is_dashed: bool = False
    has_points: bool = True


class Mark(NamedTuple):
    """A straight line across a panel, with a word: the knee, what users accept."""

    axis: Literal["x", "y"]
    at: float
    text: str


class Panel(NamedTuple):
    """One diagram."""

    title: str
    x_title: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    x_ticks: tuple[float, ...] = ()  # with them the axis is logarithmic
    is_log_x: bool = False


def sweep_panels(
    levels: Sequence[BenchmarkLevel], *, slo: Slo | None = None, baseline: Sequence[BenchmarkLevel] = ()
) -> tuple[Panel, ...]:
    """Throughput over concurrency, and both latencies over throughput: the curve that bends up where it is full."""
    unit = "tokens/s" if all(level.counted_in == "tokens" for level in levels) else "chunks/s"
    closed = [level for level in levels if level.request_rate is None]
    knee = find_knee(closed)
    full = next((level.output_throughput for level in closed if level.concurrency == knee), None)
    before = [level for level in baseline if level.request_rate is None]
    first = Panel(
        f"output_throughput, {unit}",
        "concurrency",
        tuple(_by_concurrency(closed, before)),
        (Mark("x", float(knee), "knee"),) if knee is not None else (),
        x_ticks=tuple(float(level.concurrency) for level in closed),
        is_log_x=True,
    )
    knees = (Mark("x", full, "knee"),) if full is not None else ()
    bounds = {"ttft_ms": slo.ttft_ms if slo else None, "tpot_ms": slo.tpot_ms if slo else None}
    return first, *(
        Panel(
            f"{figure} by throughput",
            unit,
            tuple(_latencies(figure, levels, baseline)),
            (*knees, Mark("y", bound, "SLO")) if bound is not None else knees,
        )
        for figure, bound in bounds.items()
    )


def _by_concurrency(levels: Sequence[BenchmarkLevel], before: Sequence[BenchmarkLevel]) -> Iterable[Line]:
    for name, colour, some in (("last good", MUTED, before), ("now", BLUE, levels)):
        if some:
            xs = tuple(float(level.concurrency) for level in some)
            ys = tuple(level.output_throughput for level in some)
            hollow = tuple(not level.is_valid for level in some)
            yield Line(name if before else "", colour, xs, ys, hollow, is_dashed=some is before)


def _latencies(figure: str, levels: Sequence[BenchmarkLevel], baseline: Sequence[BenchmarkLevel]) -> Iterable[Line]:
    for part, colour, some in (("p50", MUTED, baseline), ("p50", BLUE, levels), ("p99", ORANGE, levels)):
        line = _latency_line(figure, part, colour, some, is_before=some is baseline)
        if line is not None:
            yield line


def _latency_line(
    figure: str, part: str, colour: str, levels: Sequence[BenchmarkLevel], *, is_before: bool
) -> Line | None:
    known = [(level, spread) for level in levels if (spread := getattr(level, figure)) is not None]
    if not known:
        return None
    return Line(
        f"{part}, last good" if is_before else part,
        colour,
        tuple(level.output_throughput for level, _ in known),
        tuple(float(getattr(spread, part)) for _, spread in known),
        tuple(not level.is_valid for level, _ in known),
        is_dashed=is_before,
    )


def distribution_panels(levels: Sequence[BenchmarkLevel]) -> tuple[Panel, ...]:
    """How the times of single requests (ttft) and gaps (itl) are spread, a line for each of at most six levels."""
    shown = _some(levels)
    panels = []
    for figure, words in (("ttft_ms", "share of requests"), ("itl_ms", "share of gaps")):
        lines = [
            _distribution(level.name.removeprefix("concurrency "), colour, level.histograms[figure])
            for colour, level in zip(RAMP, shown, strict=False)
            if figure in level.histograms
        ]
        if lines:
            panels.append(Panel(f"{figure}: {words}, %", "ms, by concurrency", tuple(lines), is_log_x=True))
    return tuple(panels)


def _some(levels: Sequence[BenchmarkLevel]) -> Sequence[BenchmarkLevel]:
    """At most as many levels as there are colours, evenly, the first and the last among them."""
    if len(levels) <= len(RAMP):
        return levels
    step = (len(levels) - 1) / (len(RAMP) - 1)
    return [levels[round(number * step)] for number in range(len(RAMP))]


def _distribution(name: str, colour: str, histogram: Histogram) -> Line:
    """Shares by bin; few samples get wider bins (about two times the root of their number), or all is noise."""
    total = sum(histogram.counts) or 1
    width = max(1, round(len(histogram.counts) / max(4.0, 2 * total**0.5)))
    starts = range(0, len(histogram.counts), width)
    edges = [histogram.edges[min(at, len(histogram.edges) - 1)] for at in (*starts, len(histogram.counts))]
    centres = [(a * b) ** 0.5 for a, b in pairwise(edges)]
    shares = tuple(100 * sum(histogram.counts[at : at + width]) / total for at in starts)
    return Line(name, colour, tuple(centres), shares, has_points=False)


def longest(levels: Sequence[BenchmarkLevel]) -> BenchmarkLevel:
    """The level with the most samples over time, the last of those that have as many."""
    return max(reversed(levels), key=lambda level: len(level.server_samples) + len(level.gpu_samples))


def time_panels(level: BenchmarkLevel) -> tuple[Panel, ...]:
    """What server and GPUs did during a level, second by second; only what was sampled three times or more."""
    found = [
        _lane("requests in the server", level.server_samples, {"running": BLUE, "waiting": ORANGE}, 1.0),
        _lane("KV cache in use, %", level.server_samples, {"kv_cache_usage": BLUE}, 100.0),
        _gpu_lane("GPU utilization, %", level.gpu_samples, "utilization_percent", 1.0),
        _gpu_lane("GPU power, W", level.gpu_samples, "power_w", 1.0),
        _gpu_lane("GPU memory, GiB", level.gpu_samples, "memory_used_bytes", 1 / _GIB),
        _gpu_lane("GPU clock, MHz", level.gpu_samples, "sm_clock_mhz", 1.0),
    ]
    return tuple(panel for panel in found if panel is not None)


def _lane(title: str, samples: Sequence[Any], names: dict[str, str], factor: float) -> Panel | None:
    lines = []
    for name, colour in names.items():
        points = [(each.at_s, getattr(each, name)) for each in samples if getattr(each, name) is not None]
        if len(points) >= MIN_SAMPLES:
            xs, ys = zip(*points, strict=True)
            lines.append(Line(name, colour, tuple(xs), tuple(factor * y for y in ys), has_points=False))
    return Panel(title, "s", tuple(lines)) if lines else None


def _gpu_lane(title: str, samples: Sequence[GpuSample], name: str, factor: float) -> Panel | None:
    lines: list[Line] = []
    marks: list[Mark] = []
    for number, index in enumerate(sorted({each.index for each in samples})):
        own = [each for each in samples if each.index == index and getattr(each, name) is not None]
        if len(own) >= MIN_SAMPLES:
            xs, ys = tuple(each.at_s for each in own), tuple(factor * getattr(each, name) for each in own)
            lines.append(Line(f"GPU {index}", RAMP[number % len(RAMP)], xs, ys, has_points=False))
    throttled = next((each for each in samples if each.throttle_reasons), None)
    if throttled is not None and name == "sm_clock_mhz":
        marks.append(Mark("x", throttled.at_s, throttled.throttle_reasons[0]))
    return Panel(title, "s", tuple(lines), tuple(marks)) if lines else None
