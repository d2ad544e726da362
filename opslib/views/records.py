"""Records as a list: when, where, what, how it ended, with a link to each."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from opslib.domain.states import State
from opslib.views.shown import Shown
from opslib.views.tables import Html, table, text_table
from opslib.views.theme import MUTED, badge, note, state_text

COLUMNS = ("when (UTC)", "host", "unit", "runbook", "state", "outcome")
_LONGEST = 120  # characters of an outcome in a list; the record has all of it
_OPEN = {"running": "… running", "interrupted": "✗ interrupted", "unreadable": "? unreadable"}


def record_rows(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row of COLUMNS per record, as plain text."""
    return [
        (
            _when(entry),
            str(entry["host"]) or "-",
            str(entry["unit"]) or "-",
            runbook_text(entry),
            _state_text(str(entry["state"])),
            shortened("  ".join(filter(None, (str(entry.get("ticket", "")), ending(entry))))),
        )
        for entry in entries
    ]


def records_table(entries: Sequence[Mapping[str, Any]], links: Sequence[str] = (), *, nothing: str = "") -> Shown:
    """The records as a table; `links` lead to each record from where the table is shown."""
    if not entries:
        sentence = nothing or "no records yet: each run of a runbook leaves one"
        return Shown(note(sentence), sentence)
    rows = record_rows(entries)
    shown = []
    for at, (entry, row) in enumerate(zip(entries, rows, strict=True)):
        when = link(links[at], row[0]) if at < len(links) and links[at] else row[0]
        shown.append((when, *row[1:4], _state_html(str(entry["state"])), row[5]))
    return Shown(table(shown, COLUMNS), text_table(rows, COLUMNS))


def runbook_text(entry: Mapping[str, Any]) -> str:
    """The runbook's name, and that it changed nothing where it was a dry run."""
    return f"{entry['runbook'] or '-'}{' (dry run)' if entry.get('is_dry_run') else ''}"


def ending(entry: Mapping[str, Any]) -> str:
    """How a run ended in one line: its cause in front, once, with what cured it where that is known.

    >>> ending({"outcome": "stopped at remedy: a/b (high confidence): too large", "cause": "a/b", "cured_by": ""})
    'a/b: too large'
    """
    cause, cured_by = str(entry.get("cause") or ""), str(entry.get("cured_by") or "")
    reason = " ".join(str(entry["outcome"]).split())
    if cause and cured_by:
        rest = reason.partition(f"cured by {cured_by}; ")[2] or reason
        return f"{cause}, cured by {cured_by}{'' if entry.get('state') == 'ok' else f'; {rest}'}"
    if not cause:
        return reason
    return f"{cause}: {re.sub(rf'^.*{re.escape(cause)}(?: [(][a-z]+ confidence[)])?: ', '', reason)}"


def record_note(name: str) -> Shown:
    """Where the record of a run that has just begun lies."""
    sentence = f"Record: runs/{name} (this notebook is copied there each time it is saved)"
    return Shown(note(sentence), sentence)


def link(href: str, text: str) -> Html:
    """A link as a table cell; relative, so that JupyterLab opens it in a tab."""
    return Html(f'<a href="{escape(href)}">{escape(text)}</a>')


def shortened(text: str, longest: int = _LONGEST) -> str:
    """The text on one line, cut where it is longer.

    >>> shortened("a  b", 10), shortened("0123456789", 5)
    ('a b', '0123…')
    """
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip()}…"


def _when(entry: Mapping[str, Any]) -> str:
    started_at = entry["started_at"]
    return f"{started_at:%Y-%m-%d %H:%M:%S}" if started_at else "-"


def _state_text(state: str) -> str:
    return state_text(State(state)) if state in {known.value for known in State} else _OPEN.get(state, state)


def _state_html(state: str) -> Html:
    if state in {known.value for known in State}:
        return Html(badge(State(state)))
    return Html(f'<span style="color:{MUTED};white-space:nowrap">{escape(_state_text(state))}</span>')
