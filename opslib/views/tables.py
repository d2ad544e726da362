"""Small tables: HTML that reads without style sheets and scripts, and the same as aligned text."""

from collections.abc import Mapping, Sequence
from html import escape

from opslib.domain.states import State
from opslib.views.theme import badge, state_text

Row = Sequence[object] | Mapping[str, object]
_CELL = "padding:3px 10px"
_LONG = 40  # characters; a longer cell may wrap, so that a table stays as wide as its page
_LONG_WORD = 10
_RULE = "border-bottom:1px solid rgba(128,128,128,.5)"


class Html(str):
    """A cell that is HTML already and is not escaped again."""

    __slots__ = ()


def table(rows: Sequence[Row], columns: Sequence[str], *, caption: str = "") -> str:
    """The rows as an HTML table; numbers stand right, states are badges, None is a dash.

    A row is a sequence in the order of `columns`, or a mapping by column name.

    >>> "<td" in table([("a", 1)], ["name", "n"])
    True
    """
    cells = [_values(row, columns) for row in rows]
    aligns = [_align(column) for column in zip(*cells, strict=True)] or ["left"] * len(columns)
    head = "".join(_cell("th", _head(name), align) for name, align in zip(columns, aligns, strict=True))
    body = "".join(f"<tr>{_row(row, aligns)}</tr>" for row in cells)
    title = f'<caption style="text-align:left;padding:3px 10px">{escape(caption)}</caption>' if caption else ""
    style = "border-collapse:collapse;margin:6px 0;color:inherit;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{title}<thead style="{_RULE}"><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def beside(*parts: str) -> str:
    """Blocks of HTML side by side where there is room, below each other where there is none."""
    cells = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 32px;align-items:flex-start">{cells}</div>'


def text_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """The rows as aligned text.

    >>> print(text_table([("weights", 57.5), ("graphs", 2)], ["term", "GiB"]))
    term      GiB
    weights  57.5
    graphs      2
    """
    cells = [_values(row, columns) for row in rows]
    aligns = [_align(column) for column in zip(*cells, strict=True)] or ["left"] * len(columns)
    lines = [list(columns)] + [[_text(value) for value in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths, aligns) for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separated, or a dash for None.

    >>> number(1234.56, 1), number(None)
    ('1,234.6', '-')
    """
    return "-" if value is None else f"{value:,.{digits}f}"


def _values(row: Row, columns: Sequence[str]) -> list[object]:
    if isinstance(row, Mapping):
        return [row.get(name) for name in columns]
    return list(row)


def _align(column: tuple[object, ...]) -> str:
    known = [value for value in column if value not in (None, "-")]
    return "right" if known and all(_is_number(value) for value in known) else "left"


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        digits = value.removeprefix("-").replace(",", "").replace(".", "")
        return digits.isdigit() and not isinstance(value, (State, Html))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _head(name: str) -> str:
    """A column's name; a long snake-cased word may be broken behind an underscore."""
    if isinstance(name, Html):
        return name
    words = (word.replace("_", "_<wbr>") if len(word) > _LONG_WORD else word for word in escape(name).split(" "))
    return " ".join(words)


def _row(row: Sequence[object], aligns: Sequence[str]) -> str:
    return "".join(_cell("td", _html(value), align) for value, align in zip(row, aligns, strict=True))


def _cell(tag: str, content: str, align: str) -> str:
    # GitHub keeps the attribute and drops the style; JupyterLab's own style sheet overrules the attribute.
    is_numbers_head = tag == "th" and align == "right"  # may wrap, so that a table of numbers stays narrow
    wrap = "" if is_numbers_head or (len(content) > _LONG and "<" not in content) else ";white-space:nowrap"
    return f'<{tag} align="{align}" style="text-align:{align};{_CELL}{wrap}">{content}</{tag}>'


def _html(value: object) -> str:
    if isinstance(value, Html):
        return value
    return badge(value) if isinstance(value, State) else escape(_text(value))


def _text(value: object) -> str:
    if isinstance(value, State):
        return state_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> str:
    padded = (
        cell.rjust(width) if align == "right" else cell.ljust(width)
        for cell, width, align in zip(cells, widths, aligns, strict=True)
    )
    return "  ".join(padded).rstrip()
