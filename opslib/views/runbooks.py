"""Runbooks by the question they answer, and the hosts that they can be run against."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from opslib.domain.states import State
from opslib.views.records import link
from opslib.views.shown import Shown
from opslib.views.tables import Html, table, text_table
from opslib.views.theme import MUTED, TEXT_COLOURS, note

RUNBOOK_COLUMNS = ("question", "changes", "runbook")
HOST_COLUMNS = ("host", "address", "login", "models in")


class RunbookLine(NamedTuple):
    """A runbook in the index: its question, what it changes (`read` or `write`), its name and a link to it."""

    question: str
    effect: str
    changes: str
    name: str
    href: str


class HostLine(NamedTuple):
    """A host in the index."""

    alias: str
    address: str
    user: str
    models_dir: str


def runbooks_table(lines: Sequence[RunbookLine]) -> Shown:
    """The runbooks in their order, each with its question as the link."""
    rows = [(link(line.href, line.question), _changes(line), Html(_quiet(line.name))) for line in lines]
    text = text_table([(line.question, line.changes, line.name) for line in lines], RUNBOOK_COLUMNS)
    return Shown(table(rows, RUNBOOK_COLUMNS), text)


def hosts_list(lines: Sequence[HostLine], inventory: str) -> Shown:
    """The hosts that a runbook's parameter `host` may name; none of them is contacted for this."""
    rows = [tuple(cell or None for cell in line) for line in lines]
    told = f"From {inventory}; nothing was contacted." if inventory else "There is no hosts.toml yet: see the README."
    return Shown(table(rows, HOST_COLUMNS) + note(told), f"{text_table(rows, HOST_COLUMNS)}\n{told}")


def _changes(line: RunbookLine) -> Html:
    if line.effect == "read":
        return Html(_quiet(line.changes))
    return Html(f'<span style="color:{TEXT_COLOURS[State.WARNING]};font-weight:600">{escape(line.changes)}</span>')


def _quiet(text: str) -> str:
    return f'<span style="color:{MUTED}">{escape(text)}</span>'
