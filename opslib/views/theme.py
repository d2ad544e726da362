"""Colours and state badges that read in light and dark JupyterLab, in exported HTML and without any style."""

from html import escape

from opslib.domain.states import State

# White text on each of these keeps a contrast of at least 4.5:1 (WCAG 2.2 AA).
STATE_COLOURS: dict[State, str] = {
    State.OK: "#1a7f37",
    State.WARNING: "#9a6700",
    State.CRITICAL: "#cf222e",
    State.UNKNOWN: "#6e40c9",
}
# The same hues for text on the paper itself: each keeps 4.2:1 on white and on JupyterLab's dark.
TEXT_COLOURS: dict[State, str] = {
    State.OK: "#1d8c3d",
    State.WARNING: "#a66f00",
    State.CRITICAL: "#df3a45",
    State.UNKNOWN: "#8964d3",
}
# A shape beside the colour: about one man in twelve does not tell the green from the red.
STATE_SYMBOLS: dict[State, str] = {State.OK: "✓", State.WARNING: "!", State.CRITICAL: "✗", State.UNKNOWN: "?"}

BLUE = "#0969da"  # the measured figure
ORANGE = "#bc4c00"  # its tail (p99)
MUTED = "#787e87"  # axes, notes: 4.1:1 on white, 4.6:1 on #111
RULE = "#8888884d"  # grid lines and frames: a grey that both papers shine through
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def badge(state: State, word: str = "") -> str:
    """The state as HTML: a filled label with symbol and its word, or that `word`; a word where styles are stripped."""
    style = (
        f"background:{STATE_COLOURS[state]};color:#fff;padding:1px 8px;border-radius:9px;"
        "font-weight:600;white-space:nowrap"
    )
    return f'<span style="{style}">{STATE_SYMBOLS[state]} {escape(word or state.value)}</span>'


def pending_badge(word: str, *, sign: str = "… ") -> str:
    """A label like a state's for what has no state yet: hollow, with the word; `sign` says that it goes on."""
    style = f"color:{MUTED};border:1px solid {MUTED};padding:0 8px;border-radius:9px;font-weight:600;white-space:nowrap"
    return f'<span style="{style}">{sign}{escape(word)}</span>'


def state_text(state: State) -> str:
    """The state as plain text with its symbol, for terminals and `text/plain`."""
    return f"{STATE_SYMBOLS[state]} {state.value}"


def headline(state: State, summary: str, *, host: str = "") -> str:
    """One HTML line that opens an answer: badge, host, summary."""
    where = f"<b>{escape(host)}</b>: " if host else ""
    return f'<p style="margin:4px 0">{badge(state)} {where}{escape(summary)}</p>'


def note(text: str) -> str:
    """A quieter line of HTML below an answer."""
    return f'<p style="margin:4px 0;color:{MUTED}">{escape(text)}</p>'
