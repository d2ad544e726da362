"""Pictures for the file, by matplotlib, which is imported when one is drawn: the same bytes for the same values."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opslib.views.theme import MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# No paper of its own: it lies on a white page as well as on a dark one.
_SETTINGS: Any = {
    "svg.hashsalt": "opslib",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}


def as_svg(draw: Callable[[], "Figure"]) -> str:
    """The figure that `draw` makes as SVG, with text that can be searched."""
    import matplotlib as mpl  # noqa: PLC0415 - takes half a second, and the command line draws nothing

    with mpl.rc_context(_SETTINGS):
        buffer = io.StringIO()
        draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def as_png(draw: Callable[[], "Figure"]) -> bytes:
    """The figure that `draw` makes as PNG, for readers that strip SVG (GitHub)."""
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(_SETTINGS):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})
    return buffer.getvalue()


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, to be called while one is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def baseline_only(axes: "Axes") -> None:
    """No frame but the line at the bottom, and no ticks."""
    axes.tick_params(length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
