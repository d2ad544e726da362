"""The parameters of every runbook as rows: type, bounds, default, and which runbooks take them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.parameters import RUNBOOKS, defaults_of
from opslib.views.parameters import bounds_of

COLUMNS = ("parameter", "what it says", "type", "default", "runbooks")
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "table of texts",
    "null": "`null`",
}


def parameter_table() -> str:
    """The rows as a Markdown table, as docs/parameters.md has it."""
    taken: dict[tuple[str, ...], list[str]] = {}
    for runbook in RUNBOOKS:
        for row in _rows_of(runbook):
            taken.setdefault(row, []).append(runbook.partition("-")[0])
    rows = [(*row, "all" if len(numbers) == len(RUNBOOKS) else ", ".join(numbers)) for row, numbers in taken.items()]
    first_seen = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: first_seen.index(row[0]))  # what has two defaults stands together
    return "\n".join(_line(cells) for cells in (COLUMNS, ("---",) * len(COLUMNS), *rows))


def type_words(field: Mapping[str, Any]) -> str:
    """The type of a parameter by its JSON schema, in words.

    >>> type_words({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 63}})
    'list of whole numbers, 0 to 63'
    >>> type_words({"enum": ["ask", "given"], "type": "string"})
    '`ask` or `given`'
    """
    if "enum" in field:
        *others, last = (f"`{value}`" for value in field["enum"])
        return f"{', '.join(others)} or {last}"
    if "anyOf" in field:
        return " or ".join(type_words(part) for part in field["anyOf"])
    if field["type"] == "array":
        one = type_words(field["items"])
        kind, comma, bounds = one.partition(",")
        return f"list of {kind}s{comma}{bounds}"
    bounds = bounds_of(field)
    return _TYPES[field["type"]] + (f", {bounds}" if bounds else "")


def _rows_of(runbook: str) -> Iterator[tuple[str, ...]]:
    fields = RUNBOOKS[runbook].model_json_schema()["properties"]
    for name, default in defaults_of(runbook).items():
        field = fields[name]
        yield f"`{name}`", field["description"], type_words(field), f"`{json.dumps(default)}`"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
