"""A run told in the terminal: time, section, state, sentence; diffs, journal lines and tables indented below."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

# state -> symbol and style
STATES = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "critical": ("✗", "bold red"),
    "unknown": ("?", "magenta"),
    "skipped": ("-", "dim"),
    "running": ("…", "cyan"),
    "interrupted": ("✗", "magenta"),
}
_INDENT = " " * 10


class _Console(Console):
    """A console whose reader may leave (`| head`) without ending the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Story:
    """Prints events as they come; unknown kinds are printed as plain sentences."""

    def __init__(self, *, is_quiet_stdout: bool = False) -> None:
        self._console = _Console(
            file=sys.stderr if is_quiet_stdout else sys.stdout,
            highlight=False,
            markup=False,
            soft_wrap=True,
            emoji=False,
        )
        self._section = ""

    def tell(self, event: Mapping[str, Any]) -> None:
        """Print one event."""
        kind, text = str(event.get("kind", "")), str(event.get("text", ""))
        section = str(event.get("section") or "")
        state = str(event.get("state") or "")
        if kind == "section-started":
            self._section = section
            self._line(event, Text(text if text != section else "…", "dim"), section)
        elif kind == "outcome":
            self._line(event, Text.assemble(_badge(state), "  ", text), "outcome")
        elif text or state:
            is_quiet = kind in {"line", "progress"} and not state
            sentence = Text(text, "dim" if kind == "progress" else "")
            self._line(
                event, sentence if is_quiet else Text.assemble(_badge(state), "  " if state else "", text), section
            )
        self._block(kind, event)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line of our own."""
        self._console.print(Text(text, style))

    def _line(self, event: Mapping[str, Any], sentence: Text, section: str) -> None:
        clock = _clock(event.get("at"))
        line = Text.assemble((f"{clock:<8}", "dim"), "  ", (f"{section:<18}", "bold"), " ", sentence)
        self._console.print(line)

    def _block(self, kind: str, event: Mapping[str, Any]) -> None:
        if "rows" in event:
            self._table(event.get("columns") or [], event["rows"])
            return
        lines = event.get("lines") or []
        for line in lines if isinstance(lines, list) else str(lines).splitlines():
            text = str(line).rstrip("\n")
            self._console.print(Text(f"{_INDENT}{'  ' if kind != 'evidence' else '│ '}{text}", _line_style(kind, text)))

    def _table(self, columns: Sequence[Any], rows: Sequence[Any]) -> None:
        cells = [[_shown(cell) for cell in (row.values() if isinstance(row, dict) else row)] for row in rows]
        for line in plain_table([str(name) for name in columns], cells):
            self._console.print(Text(f"{_INDENT}  {line}"))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines: a header and the rows; columns of numbers stand right.

    >>> plain_table(["n", "name"], [["1", "a"], ["12", "b"]])
    [' n  name', ' 1  a', '12  b']
    """
    lines = [list(columns), *[list(row) for row in rows]] if columns else [list(row) for row in rows]
    if not lines:
        return []
    widths = [max((len(line[at]) for line in lines if at < len(line)), default=0) for at in range(max(map(len, lines)))]
    numeric = [all(_is_number(row[at]) for row in rows if at < len(row)) for at in range(len(widths))]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, numeric, strict=False)
        ).rstrip()
        for line in lines
    ]


def badge_text(state: str) -> str:
    """A state with its symbol, for plain output.

    >>> badge_text("ok")
    '✓ ok'
    """
    return f"{STATES.get(state, ('?', ''))[0]} {state}" if state else ""


def _badge(state: str) -> Text:
    return Text(badge_text(state), STATES.get(state, ("?", ""))[1])


def _clock(at: object) -> str:
    try:
        return datetime.fromisoformat(str(at)).strftime("%H:%M:%S")
    except ValueError:
        return ""


def _line_style(kind: str, line: str) -> str:
    if kind == "diff":
        return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
    return "" if kind == "table" else "dim"


def _shown(cell: object) -> str:
    return f"{cell:,.1f}" if isinstance(cell, float) else "-" if cell is None else str(cell)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").isdigit() or text == "-"
