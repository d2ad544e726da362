"""The records as a list for a terminal: two lines each, never wider than it."""

import shutil
from collections.abc import Iterator, Sequence

from opslib.app.reviewing import facts_of
from opslib.cli.story import badge_text
from opslib.records.find import time_of
from opslib.records.index import RecordEntry
from opslib.views.records import ending, runbook_text

_WIDEST = 100
_STATE = len("✗ interrupted")
_INDENT = " " * 4


def list_lines(entries: Sequence[RecordEntry]) -> Iterator[str]:
    """When (as `runs show` takes it), state, runbook, host and unit; below it the ticket and how the run ended."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    named = [(runbook_text(facts_of(entry)), entry.host or "-", entry.unit or "-") for entry in entries]
    widths = [max(len(names[at]) for names in named) for at in range(3)]
    for entry, names in zip(entries, named, strict=True):
        cells = [name.ljust(wide) for name, wide in zip(names, widths, strict=True)]
        line = f"{time_of(entry.name):<19}  {badge_text(entry.shown_state):<{_STATE}}  {'  '.join(cells)}"
        yield _cut(line.rstrip(), width)
        told = "  ".join(filter(None, (entry.ticket, ending(facts_of(entry)))))
        yield _cut(f"{_INDENT}{told}".rstrip(), width)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"
