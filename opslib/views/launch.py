"""The launch as it happens: both signals, phase, progress, GPU memory and the journal's last lines."""

from collections.abc import Sequence
from html import escape

from opslib.domain.states import State
from opslib.views.panels import quote
from opslib.views.shown import Shown
from opslib.views.tables import beside, table, text_table
from opslib.views.theme import BLUE, badge, pending_badge, state_text

N_JOURNAL_LINES = 12
COLUMNS = ("at (s)", "what was seen")


def launch_panel(
    host: str,
    state: State,
    summary: str,
    *,
    signals: Sequence[tuple[str, str]],
    percent: float | None,
    timeline: Sequence[tuple[float, str]],
    journal: Sequence[str],
) -> Shown:
    """One picture of a launch: `signals` are name and value, `timeline` seconds since the start and what was seen.

    No launch ends *unknown*: with that state it is still going on, and is shown so.
    """
    bar = _bar(percent) if percent is not None else ""
    seen = [(f"{at:.1f}", text) for at, text in timeline]
    is_going_on = state is State.UNKNOWN
    label = pending_badge("starting") if is_going_on else badge(state)
    html = [
        f'<p style="margin:4px 0">{label} <b>{escape(host)}</b>: {escape(summary)}</p>',
        bar,
        beside(table(signals, ("signal", "now")), table(seen, COLUMNS)),
    ]
    text = [
        f"{'… starting' if is_going_on else state_text(state)}  {host}: {summary}",
        text_table(signals, ("signal", "now")),
        text_table(seen, COLUMNS),
    ]
    if journal:
        lines = list(journal)[-N_JOURNAL_LINES:]
        html.append(quote(lines))
        text += [f"  | {line}" for line in lines]
    return Shown("".join(html), "\n".join(text))


def _bar(percent: float) -> str:
    width = max(0.0, min(100.0, percent))
    outer = "width:420px;max-width:100%;height:8px;border-radius:4px;background:rgba(128,128,128,.25);margin:6px 0"
    inner = f"width:{width:.0f}%;height:8px;border-radius:4px;background:{BLUE}"
    label = escape(f"{width:.0f} %")
    return f'<div style="{outer}" title="{label}"><div style="{inner}"></div></div>'
