"""Panels as figures: live by plotly, and drawn from the same values by matplotlib for the file."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opslib.domain.benchmark import BenchmarkLevel
from opslib.views.benchmark_panels import Line, Panel
from opslib.views.pictures import as_png, as_svg, baseline_only, new_figure
from opslib.views.theme import FONT, MUTED, RULE

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG_FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide, where there is no DejaVu
_FAINT = "rgba(128,128,128,.2)"
_COLUMNS = 3
PLOTLY = "application/vnd.plotly.v1+json"


def live_figure(panels: Sequence[Panel]) -> "go.Figure":
    """The panels as a live figure: hover tells the values, hollow points are marked levels."""
    from plotly.subplots import make_subplots  # noqa: PLC0415 - takes a third of a second; the command line draws nothing

    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    titles = [panel.title for panel in panels]
    figure = make_subplots(rows, columns, subplot_titles=titles, horizontal_spacing=0.08, vertical_spacing=0.3 / rows)
    for number, panel in enumerate(panels):
        where: dict[str, Any] = {"row": number // columns + 1, "col": number % columns + 1}
        for line in panel.lines:
            figure.add_trace(_trace(line, panel), **where)
        for mark in panel.marks:
            add = figure.add_vline if mark.axis == "x" else figure.add_hline
            add(mark.at, line={"dash": "dot", "color": MUTED, "width": 1}, annotation_text=mark.text, **where)
        figure.update_xaxes(title_text=panel.x_title, type="log" if panel.is_log_x else "linear", **where)
        if panel.x_ticks:
            figure.update_xaxes(tickvals=panel.x_ticks, **where)
    figure.update_xaxes(gridcolor=_FAINT)
    figure.update_yaxes(gridcolor=_FAINT, zerolinecolor="rgba(128,128,128,.4)", rangemode="tozero")
    return figure.update_layout(
        height=60 + 250 * rows,
        margin={"l": 50, "r": 40, "t": 40, "b": 50},
        font={"family": FONT, "color": MUTED, "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        hovermode="x unified",
    )


def _trace(line: Line, panel: Panel) -> "go.Scatter":
    import plotly.graph_objects as go  # noqa: PLC0415

    symbols = ["circle-open" if hollow else "circle" for hollow in line.hollow] or "circle"
    mode = "lines+markers" if line.has_points else "lines"
    return go.Scatter(
        x=list(line.xs),
        y=list(line.ys),
        name=line.name or panel.title,
        mode=f"{mode}+text" if line.name else mode,
        text=[""] * (len(line.xs) - 1) + [line.name],  # at its end, where a legend would stand far away
        textposition="top left",
        textfont={"color": line.colour},
        cliponaxis=False,
        line={"color": line.colour, "width": 2, "dash": "dash" if line.is_dashed else "solid"},
        marker={"symbol": symbols, "size": 8},
    )


def svg_of(panels: Sequence[Panel]) -> str:
    """The panels as SVG: the same bytes for the same values, with text that can be searched."""
    return as_svg(partial(_drawn, panels)).replace("'DejaVu Sans'", _SVG_FONTS)


def png_of(panels: Sequence[Panel]) -> bytes:
    """The panels as PNG, for readers that strip SVG (GitHub)."""
    return as_png(partial(_drawn, panels))


class FigureDisplay:
    """A figure that stands in the file as a PNG, with one sentence where no picture can be shown."""

    def __init__(self, panels: Sequence[Panel], text: str) -> None:
        self.png = png_of(panels)
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        """What IPython stores: the picture and its sentence."""
        del include, exclude
        return {"image/png": self.png, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


class LiveDisplay:
    """The same panels while a notebook looks on: JupyterLab draws them, with values under the pointer."""

    def __init__(self, panels: Sequence[Panel], text: str) -> None:
        self.figure = live_figure(panels)
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        """Plotly's own form (20 kB, no script in the file), and a sentence for others."""
        del include, exclude
        return {PLOTLY: json.loads(self.figure.to_json()), "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def alt_text(levels: Sequence[BenchmarkLevel]) -> str:
    """The sweep's figure in one sentence, for a reader who does not see it."""
    points = ", ".join(f"{level.output_throughput:,.0f} at {_short(level)}" for level in levels)
    return f"Figure: output throughput per second by concurrency: {points}."


def _short(level: BenchmarkLevel) -> str:
    return level.name.removeprefix("concurrency ")


def _drawn(panels: Sequence[Panel]) -> "Figure":
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = new_figure(9.2 if columns > 1 else 4.6, 2.7 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number < len(panels):
            _draw(axes, panels[number])
        else:
            axes.set_visible(False)
    return figure


def _draw(axes: "Axes", panel: Panel) -> None:
    _frame(axes, panel)
    for line in panel.lines:
        _plot(axes, line)
    known = [value for line in panel.lines for value in line.ys]
    known += [mark.at for mark in panel.marks if mark.axis == "y"]
    axes.set_ylim(bottom=0, top=1.12 * (max(known, default=0.0) or 1.0))
    for mark in panel.marks:
        draw = axes.axvline if mark.axis == "x" else axes.axhline
        draw(mark.at, color=MUTED, linestyle=":", linewidth=1)
        place = (mark.at, axes.get_ylim()[0]) if mark.axis == "x" else (axes.get_xlim()[0], mark.at)
        axes.annotate(mark.text, place, (3, 3), textcoords="offset points", color=MUTED, fontsize=8)
    _name_lines(axes, panel.lines)


def _frame(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: PLC0415 - see `pictures`

    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    if panel.is_log_x:
        axes.set_xscale("log", base=2 if panel.x_ticks else 10)
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks)
    else:
        axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=8) if panel.is_log_x else MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(panel.x_title)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.margins(x=0.1)
    baseline_only(axes)


def _plot(axes: "Axes", line: Line) -> None:
    style = "--" if line.is_dashed else "-"
    axes.plot(line.xs, line.ys, style, color=line.colour, linewidth=1.8)
    if line.has_points:
        for x, y, hollow in zip(line.xs, line.ys, line.hollow or (False,) * len(line.xs), strict=True):
            face = "none" if hollow else line.colour
            axes.plot(x, y, marker="o", markersize=5, color=line.colour, markerfacecolor=face)


def _name_lines(axes: "Axes", lines: Sequence[Line]) -> None:
    """A legend of words in the lines' colours, where there are names to tell."""
    named = [line for line in lines if line.name]
    if not named:
        return
    handles = [axes.plot([], [], "--" if line.is_dashed else "-", color=line.colour)[0] for line in named]
    legend = axes.legend(
        handles, [line.name for line in named], frameon=False, fontsize=8, handlelength=1.2, borderaxespad=0.1
    )
    for text, line in zip(legend.get_texts(), named, strict=True):
        text.set_color(line.colour)
