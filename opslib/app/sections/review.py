"""What happened before?"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opslib.app.index import link_to
from opslib.app.records import REVIEW, diff_frame, incident_frame, read_runs, timeline_frame
from opslib.app.reviewing import document_of, facts_of, records_frame, select_records
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.app.unit_watch import replay_stories
from opslib.domain.launch_record import WatchHead
from opslib.domain.launch_story import LaunchStory
from opslib.domain.run_diff import RunDiff, diff_runs
from opslib.domain.run_incident import Incident, incident
from opslib.domain.run_timeline import Timeline, timeline
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.records.index import RecordEntry
from opslib.views.incident import incident_panel
from opslib.views.launch import launch_panel
from opslib.views.records import records_table
from opslib.views.run_diff import diff_panel
from opslib.views.shown import Shown
from opslib.views.theme import note
from opslib.views.timeline import timeline_panel

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "records reviewed, newest first"

_NO_TICKET = "no `ticket` is given: a post-mortem is drafted for one"
_NO_LAUNCH = "no record that is listed holds a watched launch"
_NO_PAIR = "no two of these records are of the same runbook, host and unit"


@section("review")
def review(run: Run) -> Answer:
    """The records that match the parameters, newest first, each with a link; this run's own is left out."""
    wanted = run.parameters.model_dump()
    limit = wanted.pop("limit")
    own = str(run.folder.path)
    entries = [entry for entry in select_records(run.folder.path.parent, **wanted) if entry.folder != own][:limit]
    run.answers["records"] = entries
    base = run.folder.path if run.is_headless else None
    links = [link_to(document_of(entry), base) for entry in entries]
    shown = records_table([facts_of(entry) for entry in entries], links, nothing="no record matches")
    value = {"n_records": len(entries), "records": [Path(entry.folder).name for entry in entries]}
    return SectionResult(state=State.OK, summary=SUMMARY, value=value), shown


@section("timeline")
def show_timeline(run: Run) -> Answer:
    """The ticket's records on one time line; without a ticket, the newest record that is listed."""
    chosen = _runs_listed(run)
    told = [entry.name for entry in (chosen if run.parameters.ticket else chosen[:1])]
    run.answers["timeline"] = found = timeline(read_runs(run.folder.path.parent, told) if told else [])
    value = {"records": told, "n_rows": len(found.rows), "notes": list(found.notes)}
    return SectionResult(state=State.OK, summary=SUMMARY, value=value), timeline_panel(found, _links(run))


@section("diff")
def compare_last(run: Run) -> Answer:
    """The newest record that is listed against the last one before it of the same runbook, host and unit."""
    pair = _last_pair(_runs_listed(run))
    if pair is None:
        return SectionResult(state=State.OK, summary=SUMMARY), Shown(note(_NO_PAIR), _NO_PAIR)
    run.answers["diff"] = found = diff_runs(*read_runs(run.folder.path.parent, [entry.name for entry in pair]))
    return SectionResult(state=State.OK, summary=SUMMARY, value=found.model_dump(mode="json")), diff_panel(found)


@section("incident")
def draft_incident(run: Run) -> Answer:
    """A post-mortem's draft of the ticket's records."""
    ticket, names = run.parameters.ticket, [entry.name for entry in _runs_listed(run)]
    if not ticket or not names:
        return SectionResult(state=State.OK, summary=SUMMARY), Shown(note(_NO_TICKET), _NO_TICKET)
    run.answers["incident"] = found = incident(ticket, read_runs(run.folder.path.parent, names))
    panel = incident_panel(found, _links(run))
    run.folder.write_text("incident.md", incident_panel(found).text)
    return SectionResult(state=State.OK, summary=SUMMARY, value=found.model_dump(mode="json")), panel


def show_launch(run: Run, record: str = "") -> Shown:
    """The launches of a record as their cells showed them last, drawn from its event files; the newest with any.

    Raises UnknownName where there is no such record, CouldNotFindOut where it holds no watch.
    """
    runs_dir = run.folder.path.parent
    names = [record] if record else [entry.name for entry in _runs_listed(run)]
    told = next(filter(None, (_stories(runs_dir / name, is_asked=bool(record)) for name in names)), None)
    if told is None:
        return Shown(note(_NO_LAUNCH), _NO_LAUNCH)
    panels = [launch_panel(head.host, head.unit, story, is_over=True) for head, story in told]
    return Shown("<hr>".join(panel.html for panel in panels), "\n\n".join(panel.text for panel in panels))


def _stories(folder: Path, *, is_asked: bool) -> list[tuple[WatchHead, LaunchStory]]:
    """What was watched in a record; nothing where it holds no watch and nobody asked for this very one."""
    try:
        return replay_stories(folder)
    except CouldNotFindOut:
        if is_asked:
            raise
        return []


def reviewed_frame(run: Run) -> "pd.DataFrame":
    """The same records as a DataFrame, to filter, count and plot on."""
    return records_frame(run.answers.get("records", []))


def told_frame(run: Run, what: str) -> "pd.DataFrame":
    """What a section told, as a DataFrame: `timeline`, `diff` or `incident`; empty where it told nothing."""
    if what == "timeline":
        return timeline_frame(run.answers.get(what) or Timeline())
    if what == "diff":
        return diff_frame(run.answers.get(what) or RunDiff(a="", b=""))
    return incident_frame(run.answers.get(what) or Incident(ticket="", runs=()))


def _runs_listed(run: Run) -> list[RecordEntry]:
    """The records that were listed, but for reviews, which only look, and what can't be read."""
    listed: list[RecordEntry] = run.answers.get("records", [])
    return [entry for entry in listed if entry.runbook != REVIEW and entry.status != "unreadable"]


def _last_pair(entries: list[RecordEntry]) -> tuple[RecordEntry, RecordEntry] | None:
    """The older one first."""
    for at, entry in enumerate(entries):
        for before in entries[at + 1 :]:
            if (before.runbook, before.host, before.unit) == (entry.runbook, entry.host, entry.unit):
                return before, entry
    return None


def _links(run: Run) -> Callable[[str, str], str]:
    """Links to the files of records, from where the notebook lies."""
    runs_dir, base = run.folder.path.parent, run.folder.path if run.is_headless else None
    return lambda record, file: link_to(runs_dir / record / file, base)
