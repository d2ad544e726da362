"""A memory plan as stacked bars, one per GPU: live by plotly, and drawn from the same values by matplotlib."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opslib.domain.memory import MemoryPlan
from opslib.views.pictures import as_png, as_svg, baseline_only, new_figure
from opslib.views.theme import FONT, MUTED

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

GIB = 2**30
# part -> colour, in the order in which they are stacked
COLOURS = {
    "other processes": "#8c959f",
    "weights": "#0969da",
    "activation_peak": "#bf8700",
    "non_torch and context": "#6e7781",
    "cuda_graphs": "#8250df",
    "kv_cache": "#1a7f37",
    "headroom": "#d0d7de",
}


class Bar(NamedTuple):
    """One GPU: its name, its size and the parts in GiB, in the order of COLOURS."""

    label: str
    total_gib: float
    parts: tuple[float, ...]

    @property
    def taken_gib(self) -> float:
        """All parts but the headroom."""
        return sum(self.parts[:-1])


def bar_of(plan: MemoryPlan, label: str, *, others_gib: float = 0.0, weights_gib: float | None = None) -> Bar:
    """One GPU's bar: the plan's expected figures, with what other processes hold of it now."""
    expected = {term.name: term.expected_bytes / GIB for term in plan.terms}
    total = plan.gpu_total_bytes / GIB
    weights = expected.get("weights", 0.0) if weights_gib is None else weights_gib
    taken = (
        others_gib,
        weights,
        expected.get("activation_peak", 0.0),
        expected.get("non_torch", 0.0) + expected.get("context_and_fragmentation", 0.0),
        expected.get("cuda_graphs", 0.0),
        max(0.0, expected.get("kv_cache", 0.0)),
    )
    return Bar(label, total, (*taken, max(0.0, total - sum(taken))))


def memory_figure(bars: Sequence[Bar]) -> "go.Figure":
    """The bars as a live figure; the dashed line is the GPU's memory."""
    import plotly.graph_objects as go  # noqa: PLC0415 - takes a third of a second, and the command line draws nothing

    figure = go.Figure()
    for index, (name, colour) in enumerate(COLOURS.items()):
        sizes = [bar.parts[index] for bar in bars]
        if any(sizes):
            figure.add_bar(x=[bar.label for bar in bars], y=sizes, name=name, marker_color=colour)
    for total in sorted({round(bar.total_gib, 2) for bar in bars}):
        figure.add_hline(y=total, line={"dash": "dash", "color": MUTED, "width": 1})
    figure.update_layout(
        barmode="stack",
        height=340,
        yaxis_title="GiB",
        margin={"l": 50, "r": 20, "t": 20, "b": 40},
        font={"family": FONT, "color": MUTED, "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure


def memory_svg(bars: Sequence[Bar]) -> str:
    """The bars as SVG: the same bytes for the same values."""
    return as_svg(partial(_drawn, bars))


def memory_png(bars: Sequence[Bar]) -> bytes:
    """The bars as PNG, for readers that strip SVG."""
    return as_png(partial(_drawn, bars))


def alt_text(bars: Sequence[Bar]) -> str:
    """The bars in one sentence, for a reader who does not see them."""
    told = "; ".join(f"{bar.label} {bar.taken_gib:.1f} of {bar.total_gib:.1f} GiB" for bar in bars)
    return f"Figure: memory planned per GPU: {told}."


def _drawn(bars: Sequence[Bar]) -> "Figure":
    figure = new_figure(9.2, 0.7 + 0.42 * max(2, len(bars)))
    axes = figure.subplots()
    labels, starts = [bar.label for bar in bars], [0.0] * len(bars)
    for index, (name, colour) in enumerate(COLOURS.items()):
        sizes = [bar.parts[index] for bar in bars]
        if not any(sizes):
            continue
        axes.barh(labels, sizes, left=starts, color=colour, label=name, height=0.6)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for bar in bars:
        axes.axvline(bar.total_gib, color=MUTED, linestyle="--", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    baseline_only(axes)
    figure.legend(loc="outside upper left", ncols=len(COLOURS), fontsize=8, frameon=False)
    return figure
