"""Parameters: what stands beside a field of the form, and the values that a run was started with."""

from collections.abc import Mapping
from html import escape
from typing import Any

from opslib.domain.states import State
from opslib.views.shown import Shown
from opslib.views.tables import Html, table, text_table
from opslib.views.theme import MUTED, TEXT_COLOURS

_REFUSED = f"color:{TEXT_COLOURS[State.CRITICAL]};font-weight:600;line-height:1.35"
COLUMNS = ("parameter", "value", "", "what it is")


def bounds_of(field: Mapping[str, Any]) -> str:
    """The bounds of a parameter by its JSON schema, in words.

    >>> bounds_of({"minimum": 1, "maximum": 65535}), bounds_of({"exclusiveMinimum": 0, "maximum": 1}), bounds_of({})
    ('1 to 65,535', 'above 0, at most 1', '')
    """
    parts = [field, *field.get("anyOf", ())]
    known = {name: part[name] for part in parts for name in ("minimum", "exclusiveMinimum", "maximum") if name in part}
    if {"minimum", "maximum"} <= known.keys():
        return f"{known['minimum']:,} to {known['maximum']:,}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    return ", ".join(f"{words[name]} {value:,}" for name, value in known.items())


def field_note(description: str, bounds: str, problem: str | None) -> str:
    """The HTML beside a field: what it means and its bounds, or why its value is refused."""
    if problem:
        return f'<div class="opslib-problem" style="{_REFUSED}">✗ {escape(problem)}</div>'
    more = f" ({bounds})" if bounds else ""
    return f'<div style="color:{MUTED};line-height:1.35">{escape(description + more)}</div>'


def form_status(before: Mapping[str, Any], values: Mapping[str, Any], problems: Mapping[str, str]) -> str:
    """The HTML below the form: what the next run is started with."""
    if problems:
        names = ", ".join(problems)
        return (
            f'<div class="opslib-status" style="{_REFUSED}">✗ No run can start with this: mend {escape(names)}.</div>'
        )
    changed = [f"<code>{name} = {escape(repr(values[name]))}</code>" for name in values if values[name] != before[name]]
    told = f"Changed here: {', '.join(changed)}." if changed else "Nothing changed: the values of the cell above."
    return f'<div class="opslib-status" style="color:{MUTED}">{told} The next cell starts the run with them.</div>'


def parameters_table(
    runbook: str, values: Mapping[str, Any], before: Mapping[str, Any], schema: Mapping[str, Any]
) -> Shown:
    """The values that a run was started with, those first that were changed in the form."""
    changed = [name for name in values if values[name] != before[name]]
    rows = [
        (name, repr(values[name]), f"was {before[name]!r}" if name in changed else "", schema[name]["description"])
        for name in [*changed, *(name for name in values if name not in changed)]
    ]
    sentence = f"{runbook} was started with {len(values)} parameters"
    sentence += f", {', '.join(changed)} changed in the form" if changed else " as they stand in the cell above"
    cells = [(Html(f"<code>{row[0]}</code>"), Html(f"<code>{escape(row[1])}</code>"), *row[2:]) for row in rows]
    open_part = table(cells[: len(changed)], COLUMNS) if changed else ""
    rest = f"<details><summary>All parameters ({len(rows)})</summary>{table(cells, COLUMNS)}</details>"
    html = f'<p style="margin:4px 0">{escape(sentence)}.</p>{open_part}{rest}'
    return Shown(html, f"{sentence}.\n\n{text_table(rows, COLUMNS)}")
