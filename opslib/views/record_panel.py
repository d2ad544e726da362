"""One record on a screen: how it ended, who ran what when, and what each section answered."""

import textwrap
from collections.abc import Iterator, Sequence

from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.states import State
from opslib.views.records import shortened
from opslib.views.shown import Shown
from opslib.views.tables import table, text_table
from opslib.views.theme import headline, note, state_text

COLUMNS = ("at (UTC)", "s", "section", "state", "answer")
_LONGEST = 200  # characters of an answer in a table
_BESIDES = 48  # columns of text that the other cells take


def record_panel(record: RunRecord, *, name: str, files: Sequence[str] = (), width: int = 100) -> Shown:
    """How the run ended, its facts and its sections; `files` are those of the record folder."""
    state = record.outcome.state if record.outcome else State.UNKNOWN
    reason = record.outcome.reason if record.outcome else f"{record.status}, no outcome yet"
    facts = [(what, text) for what, text in (*_facts(record), ("record", name), ("files", ", ".join(files))) if text]
    lines = textwrap.wrap(f"{state_text(state)}  {record.runbook}: {reason}", width, break_on_hyphens=False)
    lines += ["", *(line for what, text in facts for line in _fact_lines(what, text, width))]
    if record.sections:
        lines += ["", text_table([_row(section, width - _BESIDES) for section in record.sections], COLUMNS)]
    html = headline(state, reason, host=record.host) + "".join(note(f"{what}: {text}") for what, text in facts)
    rows = [_row(section, _LONGEST) for section in record.sections]
    return Shown(html + (table(rows, COLUMNS) if rows else ""), "\n".join(lines))


def _fact_lines(what: str, text: str, width: int) -> list[str]:
    """A fact beside its name; a path is never broken."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = f"{what:<9} ", " " * 10
    return wrapper.wrap(text)


def _row(section: SectionRecord, longest: int) -> tuple[object, ...]:
    begun, answer = f"{section.started_at:%H:%M:%S}", shortened(section.summary, longest)
    return begun, f"{section.duration_s:,.1f}", section.name, section.state, answer


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield "host", f"{record.host} ({record.answered['hostname']})" if record.answered.get("hostname") else record.host
    yield "unit", record.unit
    ended = f", ended {record.ended_at:%H:%M:%S}" if record.ended_at else ""
    yield "when", f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC{ended} ({record.status})"
    yield "by", f"{record.user} on {record.controller} (opslib {record.opslib_version})" if record.user else ""
    yield "ticket", record.ticket
    yield "dry run", "every read, no change" if record.is_dry_run else ""
    yield "cause", record.cause or ""
    yield "left", record.left
    yield "notes", "; ".join(record.notes)
