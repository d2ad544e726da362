"""A post-mortem's draft: what the records say under the usual headings, and "unknown" where they say nothing."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from html import escape

from opslib.domain.run_incident import Found, Impact, Incident
from opslib.views.shown import Shown

UNKNOWN = "unknown"
FACTS = "record.json"
NO_QUESTION = "none that the records raise"
_NEVER = "(no record shows it answering after its last death)"
LinkTo = Callable[[str, str], str]


def incident_markdown(incident: Incident, link_to: LinkTo | None = None) -> str:
    """The draft as Markdown; `link_to` makes a link of a record's name and a file in it."""
    lines = [f"# {_title(incident)}", "", _NOTE, ""]
    for heading, entries in _sections(incident, link_to):
        lines += [f"## {heading}", "", *(f"- {entry}" for entry in entries or [UNKNOWN]), ""]
    return "\n".join(lines)


def incident_panel(incident: Incident, link_to: LinkTo | None = None) -> Shown:
    """The same for a notebook."""
    parts = [f"<h3>{escape(_title(incident))}</h3><p>{escape(_NOTE)}</p>"]
    for heading, entries in _sections(incident, link_to):
        items = "".join(f"<li>{_html(entry)}</li>" for entry in entries or [UNKNOWN])
        parts.append(f"<h4>{escape(heading)}</h4><ul>{items}</ul>")
    return Shown("".join(parts), incident_markdown(incident))


_NOTE = "A draft made of the records alone: what they don't say is unknown. Times are UTC."


def _title(incident: Incident) -> str:
    units = dict.fromkeys(f"{impact.unit} on {impact.host}" for impact in incident.impacts)
    return f"{incident.ticket or 'Incident'}: {', '.join(units) or 'no unit known'}"


def _sections(incident: Incident, link_to: LinkTo | None) -> Iterator[tuple[str, list[str]]]:
    place = _Places(incident.runs, link_to)

    def told(entries: Sequence[Found]) -> list[str]:
        return [_found(entry, place) for entry in entries]

    yield "Impact", [_impact(impact, place) for impact in incident.impacts]
    yield "Detection", [_detection(incident, place)] if incident.detected else []
    yield "First cause", told(incident.causes[:1])
    if incident.causes[1:]:
        yield "Later causes", told(incident.causes[1:])
    yield "What was tried", told(incident.tried)
    yield "What cured it", told(incident.cures)
    yield "Open questions", [_escaped(question) for question in incident.open_questions] or [NO_QUESTION]
    yield "Records", [f"record {number}: {place.linked(name)}" for number, name in enumerate(incident.runs, 1)]


class _Places:
    """Where something is written: the number of the record, and the file and line where it isn't the record's facts."""

    def __init__(self, runs: Sequence[str], link_to: LinkTo | None) -> None:
        self._runs = runs
        self._link_to = link_to

    def of(self, found: Found) -> str:
        file = (
            "" if found.file == FACTS else f", {found.file.rpartition('/')[2]}{f':{found.line}' if found.line else ''}"
        )
        text = f"record {self._runs.index(found.record) + 1}{file}"
        return f"[{text}]({self._link_to(found.record, found.file)})" if self._link_to else text

    def linked(self, record: str) -> str:
        return f"[{record}]({self._link_to(record, FACTS)})" if self._link_to else f"`{record}`"


def _impact(impact: Impact, place: _Places) -> str:
    began = f"{_at(impact.began.at)} (first recorded death, {place.of(impact.began)})" if impact.began else UNKNOWN
    ended = f"{_at(impact.ended.at)} (it answers, {place.of(impact.ended)})" if impact.ended else f"{UNKNOWN} {_NEVER}"
    lasted = f"; {_lasted(impact.lasted)}" if impact.lasted is not None else ""
    again = "once" if impact.n_restarts == 1 else f"{impact.n_restarts} times"
    restarts = f"; systemd started it again {again} by itself" if impact.n_restarts else ""
    return f"{impact.unit} on {impact.host}: from {began} until {ended}{lasted}{restarts}"


def _detection(incident: Incident, place: _Places) -> str:
    assert incident.detected is not None
    gap = UNKNOWN if incident.detection_gap_s is None else _lasted(timedelta(seconds=incident.detection_gap_s))
    return f"{_found(incident.detected, place)}; {gap} after the first recorded death"


def _found(found: Found, place: _Places) -> str:
    at = f"{_at(found.at)} " if found.at else ""
    return f"{at}{_escaped(found.text)} ({place.of(found)})"


def _at(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else UNKNOWN


def _lasted(span: timedelta) -> str:
    """How long, in the two largest units.

    >>> _lasted(timedelta(seconds=0.4)), _lasted(timedelta(seconds=75)), _lasted(timedelta(hours=26, minutes=3))
    ('0.4 s', '1 min 15 s', '26 h 3 min')
    """
    seconds = span.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _escaped(text: str) -> str:
    """A text as Markdown shows it unchanged: what a log says is no markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _html(entry: str) -> str:
    """One entry of the draft as HTML: our own links and code, and nothing that a log says."""
    entry = re.sub(r"(?<!\\)\[([^\]\\]*)\]\(([^)\s]*)\)", r'<a href="\2">\1</a>', escape(entry))
    entry = re.sub(r"(?<!\\)`([^`\\]*)`", r"<code>\1</code>", entry)
    return re.sub(r"\\(?=[\\`*_{}\[\]#|]|&lt;|&gt;)", "", entry)
