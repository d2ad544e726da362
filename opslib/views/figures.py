"""Figures of a sweep: live by plotly, and drawn from the same values by matplotlib for the file."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from plotly.subplots import make_subplots

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_judge import find_knee
from opslib.views.theme import BLUE, FONT, MUTED, ORANGE

_RC: Any = {"svg.hashsalt": "opslib", "svg.fonttype": "none", "font.family": ["DejaVu Sans"], "font.size": 9}
_SVG_FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide, where there is no DejaVu
_INK, _PAPER, _GRID = "#24292f", "#ffffff", "#e3e6ea"


class Line(NamedTuple):
    """One line of a panel: what it is called and its value at each level (None where there is none)."""

    name: str
    colour: str
    values: tuple[float | None, ...]


class Panel(NamedTuple):
    """One panel over concurrency."""

    title: str
    lines: tuple[Line, ...]


def panels(levels: Sequence[BenchmarkLevel]) -> tuple[Panel, ...]:
    """The values that both figures draw: throughput, time to first token, time per output token."""
    unit = "tokens/s" if all(level.counted_in == "tokens" for level in levels) else "chunks/s"
    throughput = Line("output_throughput", BLUE, tuple(level.output_throughput for level in levels))
    return (
        Panel(f"output_throughput, {unit}", (throughput,)),
        Panel("ttft_ms", _tail(levels, "ttft_ms")),
        Panel("tpot_ms", _tail(levels, "tpot_ms")),
    )


def throughput_figure(levels: Sequence[BenchmarkLevel]) -> go.Figure:
    """The sweep as a live figure; hollow points are levels whose figures are not valid, the dotted line is the knee."""
    shown = panels(levels)
    figure = make_subplots(1, len(shown), subplot_titles=[panel.title for panel in shown], horizontal_spacing=0.07)
    for column, panel in enumerate(shown, start=1):
        for line in panel.lines:
            figure.add_trace(_trace(levels, line, is_named=len(panel.lines) > 1), row=1, col=column)
    knee = find_knee(levels)
    if knee is not None:
        figure.add_vline(x=knee, line={"dash": "dot", "color": MUTED, "width": 1})
    figure.update_xaxes(type="log", tickvals=[level.concurrency for level in levels], title_text="concurrency")
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(gridcolor="rgba(128,128,128,.2)")
    figure.update_yaxes(gridcolor="rgba(128,128,128,.2)", zerolinecolor="rgba(128,128,128,.4)")
    figure.update_layout(
        height=300,
        margin={"l": 50, "r": 40, "t": 40, "b": 50},
        font={"family": FONT, "color": MUTED, "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        hovermode="x unified",
    )
    return figure


def throughput_svg(levels: Sequence[BenchmarkLevel]) -> str:
    """The sweep as SVG: the same bytes for the same values, with text that can be searched."""
    with mpl.rc_context(_RC):
        buffer = io.StringIO()
        _drawn(levels).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace("'DejaVu Sans'", _SVG_FONTS)


def throughput_png(levels: Sequence[BenchmarkLevel]) -> bytes:
    """The sweep as PNG, for readers that strip SVG (GitHub)."""
    with mpl.rc_context(_RC):
        buffer = io.BytesIO()
        _drawn(levels).savefig(
            buffer, format="png", dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True}
        )
    return buffer.getvalue()


class FigureDisplay:
    """A figure that stands in the file as a PNG, with one sentence where no picture can be shown."""

    def __init__(self, png: bytes, text: str) -> None:
        self.png = png
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        """What IPython stores: the picture and its sentence."""
        del include, exclude
        return {"image/png": self.png, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def figure_display(levels: Sequence[BenchmarkLevel]) -> FigureDisplay:
    """The sweep's figure for a notebook that is read without JavaScript."""
    return FigureDisplay(throughput_png(levels), alt_text(levels))


def alt_text(levels: Sequence[BenchmarkLevel]) -> str:
    """The figure in one sentence, for a reader who does not see it."""
    points = ", ".join(f"{level.output_throughput:,.0f} at {level.concurrency}" for level in levels)
    return f"Figure: output throughput per second by concurrency: {points}."


def _tail(levels: Sequence[BenchmarkLevel], name: str) -> tuple[Line, ...]:
    figures = [getattr(level, name) for level in levels]
    return tuple(
        Line(part, colour, tuple(None if figure is None else getattr(figure, part) for figure in figures))
        for part, colour in (("p50", BLUE), ("p99", ORANGE))
    )


def _trace(levels: Sequence[BenchmarkLevel], line: Line, *, is_named: bool) -> go.Scatter:
    names = [""] * (len(levels) - 1) + [f" {line.name}"] if is_named else None
    symbols = ["circle" if level.is_valid else "circle-open" for level in levels]
    return go.Scatter(
        x=[level.concurrency for level in levels],
        y=list(line.values),
        name=line.name,
        mode="lines+markers+text",
        text=names,
        textposition="top right" if line.name == "p99" else "bottom right",
        textfont={"color": line.colour},
        cliponaxis=False,
        line={"color": line.colour, "width": 2},
        marker={"symbol": symbols, "size": 8},
    )


def _drawn(levels: Sequence[BenchmarkLevel]) -> Figure:
    figure = Figure(figsize=(9.2, 2.7), layout="constrained", facecolor=_PAPER)
    FigureCanvasAgg(figure)
    knee = find_knee(levels)
    for axes, panel in zip(figure.subplots(1, 3), panels(levels), strict=True):
        _frame(axes, panel.title, levels)
        for line in panel.lines:
            _plot(axes, levels, line, is_named=len(panel.lines) > 1)
        axes.set_ylim(bottom=0, top=1.12 * max(1e-9, *_known(panel)))
        if knee is not None:
            axes.axvline(knee, color=MUTED, linestyle=":", linewidth=1)
            axes.annotate("knee", (knee, 0), (3, 3), textcoords="offset points", color=MUTED, fontsize=8)
    return figure


def _known(panel: Panel) -> list[float]:
    return [value for line in panel.lines for value in line.values if value is not None] + [0.0]


def _frame(axes: Axes, title: str, levels: Sequence[BenchmarkLevel]) -> None:
    axes.set_title(title, loc="left", color=_INK, fontsize=10, fontweight="bold")
    axes.set_xscale("log", base=2)
    axes.set_xticks([level.concurrency for level in levels])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.minorticks_off()
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel("concurrency", color=MUTED)
    axes.tick_params(colors=MUTED, length=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.margins(x=0.12)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)


def _plot(axes: Axes, levels: Sequence[BenchmarkLevel], line: Line, *, is_named: bool) -> None:
    points = [
        (level.concurrency, value, level.is_valid)
        for level, value in zip(levels, line.values, strict=True)
        if value is not None
    ]
    axes.plot([point[0] for point in points], [point[1] for point in points], color=line.colour, linewidth=1.8)
    for concurrency, value, is_valid in points:
        face = line.colour if is_valid else _PAPER
        axes.plot(concurrency, value, marker="o", markersize=5, color=line.colour, markerfacecolor=face)
    if is_named and points:
        place, offset = points[-1][:2], (6, 2 if line.name == "p99" else -9)  # apart even where the values meet
        axes.annotate(line.name, place, offset, textcoords="offset points", color=line.colour, fontsize=9)
