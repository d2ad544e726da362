"""A run told in the terminal: time, section, state, sentence; diffs, journal lines and tables indented below."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from opslib.cli.showing import silence, visible

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
PROGRESS_EVERY_S = 5.0  # a phase that goes on is told again after this
MAX_QUOTED = 200  # characters of a quoted line; the record has all of it
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")
_INDENT = " " * 10


class SteadyConsole(Console):
    """A console whose reader may leave (`| head`), or whose disk may be full, without ending the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)

    def _write_buffer(self) -> None:
        try:
            super()._write_buffer()
        except OSError:  # a disk that is full, too
            self.on_broken_pipe()


class Story:
    """Prints events as they come; unknown kinds are printed as plain sentences."""

    def __init__(self, *, is_quiet_stdout: bool = False) -> None:
        self._console = SteadyConsole(
            file=sys.stderr if is_quiet_stdout else sys.stdout,
            highlight=False,
            markup=False,
            soft_wrap=True,
            emoji=False,
        )
        self.last_outcome = ""
        self._said: tuple[str, str, str] = ("", "", "")  # section, state, sentence of the line before
        self._phase = ("", "", 0.0)  # section and phase of the last progress line, and when it was printed

    def tell(self, event: Mapping[str, Any]) -> None:
        """Print one event."""
        kind, text, section, state = (_plain(event.get(name) or "") for name in ("kind", "text", "section", "state"))
        if kind == "section-started":
            text = text if text != section else "…"
        if kind == "outcome":
            section, self.last_outcome = section or "outcome", text
        is_repeated = (section, state, text) == self._said or (
            kind == "progress" and self._is_same_phase(section, text)
        )
        if (text or state) and not is_repeated:
            style = "dim" if kind in {"progress", "section-started", "section-skipped"} else ""
            self._line(event, Text.assemble(_badge(state), "  " if state else "", (text, style)), section)
            self._said = (section, state, text)
        self._block(kind, event)

    def _is_same_phase(self, section: str, text: str) -> bool:
        """Whether a progress line only moves on within its phase, and the last one is young."""
        phase, now = text.rstrip("%0123456789. "), time.monotonic()
        if (section, phase) == self._phase[:2] and now - self._phase[2] < PROGRESS_EVERY_S:
            return True
        self._phase = (section, phase, now)
        return False

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line of our own."""
        self._console.print(Text(visible(text), style))

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
            text = _plain(line).rstrip()
            text = text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"
            self._console.print(Text(f"{_INDENT}{'  ' if kind != 'evidence' else '│ '}{text}", _line_style(kind, text)))

    def _table(self, columns: Sequence[Any], rows: Sequence[Any]) -> None:
        cells = [[_shown(cell) for cell in (row.values() if isinstance(row, dict) else row)] for row in rows]
        for line in plain_table([_plain(name) for name in columns], cells):
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
    return f"{cell:,.1f}" if isinstance(cell, float) else "-" if cell is None else _plain(cell)


def _plain(text: object) -> str:
    """A text without what a terminal would obey: a journal line may hold anything."""
    return _CONTROL.sub("", str(text).replace("\t", "  "))


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").isdigit() or text == "-"
