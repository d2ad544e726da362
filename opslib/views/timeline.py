"""A time line on a screen: one row per thing that happened, each with the file and line that it is written down in."""

import textwrap
from collections.abc import Callable, Iterator

from opslib.domain.run_rows import TimelineRow
from opslib.domain.run_timeline import Timeline
from opslib.domain.states import State
from opslib.views.records import link, shortened
from opslib.views.shown import Shown
from opslib.views.tables import Html, table
from opslib.views.theme import STATE_SYMBOLS, badge, note

COLUMNS = ("at (UTC)", "source", "", "what happened", "written in")
_LONGEST = 200  # characters of a row in a table; its file has all of it
_NOTHING = "the records tell of nothing"


def timeline_panel(timeline: Timeline, link_to: Callable[[str, str], str] | None = None, *, width: int = 100) -> Shown:
    """The rows and notes; `link_to` makes a link of a record's name and a file in it."""
    if not timeline.rows:
        return Shown(note(_NOTHING), _NOTHING)
    is_several = len({(row.host, row.unit) for row in timeline.rows}) > 1
    days = [f"{row.at:%Y-%m-%d}" for row in timeline.rows]
    is_one_day = len(set(days)) == 1
    rows = [_cells(row, link_to, is_several=is_several, is_one_day=is_one_day) for row in timeline.rows]
    html = table(rows, COLUMNS, caption=days[0] if is_one_day else "") + "".join(note(line) for line in timeline.notes)
    return Shown(html, "\n".join(timeline_lines(timeline, width=width)))


def timeline_lines(timeline: Timeline, *, width: int = 100) -> Iterator[str]:
    """The time line as text: days as headings, a number and a line for where it is written, the files below."""
    files = sorted(dict.fromkeys((row.record, row.file) for row in timeline.rows), key=lambda file: file[0])
    is_several = len({(row.host, row.unit) for row in timeline.rows}) > 1
    day = ""
    for row in timeline.rows:
        if f"{row.at:%Y-%m-%d}" != day:
            day = f"{row.at:%Y-%m-%d}"
            yield f"{day} (UTC)"
        where = f"{files.index((row.record, row.file)) + 1}{f':{row.line}' if row.line else ''}"
        room = width - 24 - len(where)
        yield f"{_clock(row)}  {row.source:<8} {shortened(_text(row, is_several=is_several), room):<{room}} {where}"
    yield ""
    record = ""
    for number, (named, file) in enumerate(files, 1):
        if named != record:
            record = named
            yield record
        yield f"{number:>4}  {file}"
    if timeline.notes:
        yield ""
        for line in timeline.notes:
            yield from textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)


def _cells(
    row: TimelineRow, link_to: Callable[[str, str], str] | None, *, is_several: bool, is_one_day: bool
) -> tuple[object, ...]:
    said = shortened(_text(row, is_several=is_several, has_symbol=False), _LONGEST)
    state = Html(badge(row.state)) if row.state not in (None, State.OK) else ""
    where = f"{row.file.rpartition('/')[2]}{f':{row.line}' if row.line else ''}"
    linked = link(link_to(row.record, row.file), where) if link_to else f"{row.record}/{row.file}"
    return _clock(row) if is_one_day else f"{row.at:%Y-%m-%d} {_clock(row)}", row.source, state, said, linked


def _text(row: TimelineRow, *, is_several: bool, has_symbol: bool = True) -> str:
    symbol = f"{STATE_SYMBOLS[row.state]} " if has_symbol and row.state not in (None, State.OK) else ""
    about = f"{row.host} {row.unit}: " if is_several else ""
    return f"{symbol}{about}{row.text}"


def _clock(row: TimelineRow) -> str:
    return f"{row.at:%H:%M:%S}.{row.at.microsecond // 1000:03d}"
