"""What differs between hosts: the outliers first, each with what would align it; then what isn't known."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from opslib.domain.drift import Drift, DriftGroup, DriftReport, NotKnown
from opslib.domain.states import State
from opslib.views.shown import Shown
from opslib.views.tables import table
from opslib.views.theme import headline, note, state_text

WIDTH = 100
COLUMNS = ("host", "about", "what", "has", "the others have", "to align it")
_MOST = 6  # names that are told one by one
_LONG = 160  # characters of a value


def drift_report(report: DriftReport) -> Shown:
    """The whole of a comparison as text and as a page."""
    lines = [f"{state_text(report.state)}  {report.summary}"]
    lines += [line for drift in report.drifts for line in ("", *_drift_lines(drift))]
    lines += ["", *_unknown_lines(report.unknown)] if report.unknown else []
    lines += ["", *(line for text in report.notes for line in _wrapped(text, "  "))] if report.notes else []
    rows = [row for drift in report.drifts for row in _rows(drift)]
    html = headline(report.state, report.summary) + (table(rows, COLUMNS) if rows else "")
    html += "".join(note(line) for line in (*_unknown_lines(report.unknown), *report.notes))
    return Shown(html, "\n".join(lines))


def _drift_lines(drift: Drift) -> Iterator[str]:
    what = " ".join(filter(None, (drift.unit, _what(drift))))
    if not drift.has_majority:
        yield from _wrapped(f"{state_text(State.WARNING)}  {what}: no majority, decide which is right", "    ")
        for group in drift.groups:
            yield from _wrapped(f"    {_short(group.value)}  on {', '.join(group.hosts)}", "      ")
        return
    others = drift.groups[-1]
    for group in drift.outliers:
        told = f"{', '.join(group.hosts)}: {what}: {_short(group.value)}; {_others(others)}: {_short(others.value)}"
        yield from _wrapped(f"{state_text(State.WARNING)}  {told}", "    ")
        for host in group.hosts:
            yield f"    align: {drift.align[host]}"  # a command is to be copied whole


def _what(drift: Drift) -> str:
    words = {"limits": "limit", "variables": "variable", "unit's variables": "the unit's variable", "units": "unit"}
    return f"{words[drift.area]} {drift.name}" if drift.area in words else f"{_OF_UNIT.get(drift.area, '')}{drift.name}"


_OF_UNIT = {"unit's flags": "the unit's (not yet the process's) "}


def _others(group: DriftGroup) -> str:
    return f"the other {len(group.hosts)}" if len(group.hosts) > 1 else group.hosts[0]


def _short(value: str) -> str:
    return value if len(value) <= _LONG else f"{value[: _LONG - 1]}…"


def _unknown_lines(unknown: Sequence[NotKnown]) -> list[str]:
    """One line per reason; hosts that share it stand together."""
    ordered = sorted(unknown, key=lambda each: (each.unit, each.name, each.reason))
    lines = []
    for (unit, name, reason), same in groupby(ordered, key=lambda each: (each.unit, each.name, each.reason)):
        hosts = [each.host for each in same]
        named = ", ".join(hosts[:_MOST]) + (f" and {len(hosts) - _MOST} more" if len(hosts) > _MOST else "")
        about = " ".join(filter(None, (unit, name)))
        lines += _wrapped(f"{state_text(State.UNKNOWN)}  {named}: {about}: {reason}", "    ")
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def _rows(drift: Drift) -> Iterator[tuple[object, ...]]:
    about = drift.unit or "the host"
    others = drift.groups[-1]
    for group in drift.outliers:
        for host in group.hosts:
            right = f"{_short(others.value)} ({len(others.hosts)})" if drift.has_majority else "no majority"
            yield host, about, _what(drift), _short(group.value), right, drift.align.get(host, "decide which is right")
