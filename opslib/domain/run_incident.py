"""What the records of a ticket say about an incident: its span, its cause, what was tried, and what stays open."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from opslib.domain.run_facts import (
    STARTS,
    KeptRun,
    attempts_of,
    cause_of,
    cured_by,
    flags_of,
    has_come_up,
    section_value,
)
from opslib.domain.run_rows import clock_of, offset_of
from opslib.domain.states import State, Value

_ACTS = {"install", "launch", "remedy", "relaunch", "rollback", "canary", "benchmark"}


class Found(Value):
    """Something that a record says, and where it is written down."""

    text: str
    at: datetime | None = None
    record: str = ""
    file: str = ""
    line: int | None = None


class Impact(Value):
    """One unit's trouble: from its first recorded death until it answered again; None where no record says so."""

    host: str
    unit: str
    began: Found | None = None
    ended: Found | None = None
    n_restarts: int | None = None  # most that systemd counted: starts that nobody asked for

    @property
    def lasted(self) -> timedelta | None:
        """How long, where both ends are known."""
        if self.began is None or self.ended is None or self.began.at is None or self.ended.at is None:
            return None
        return self.ended.at - self.began.at


class Incident(Value):
    """A post-mortem's facts; a list that is empty, or None, is unknown."""

    ticket: str
    runs: tuple[str, ...]
    impacts: tuple[Impact, ...] = ()
    detected: Found | None = None
    detection_gap_s: float | None = None
    causes: tuple[Found, ...] = ()  # the first cause first
    tried: tuple[Found, ...] = ()
    cures: tuple[Found, ...] = ()
    open_questions: tuple[str, ...] = ()


def incident(ticket: str, runs: Sequence[KeptRun]) -> Incident:
    """What the records of a ticket say together, in order of time; nothing is concluded beyond them."""
    ordered = sorted(
        (run for run in runs if not run.record.runbook.startswith("60-")), key=lambda run: run.record.started_at
    )
    impacts = tuple(_impacts(ordered))
    began = min((impact.began for impact in impacts if impact.began), key=lambda found: found.at or _LAST, default=None)
    detected = _detected(ordered, began)
    gap = (detected.at - began.at).total_seconds() if detected and began and detected.at and began.at else None
    causes = tuple(_causes(ordered))
    cures = tuple(_cures(ordered))
    return Incident(
        ticket=ticket,
        runs=tuple(run.name for run in ordered),
        impacts=impacts,
        detected=detected,
        detection_gap_s=None if gap is None else round(gap, 3),
        causes=causes,
        tried=tuple(_tried(ordered)),
        cures=cures,
        open_questions=tuple(dict.fromkeys(_questions(ordered, impacts, causes, cures))),
    )


_LAST = datetime.max.replace(tzinfo=UTC)
_LONGEST = 240  # characters of what was tried; its record has all of it


def _impacts(runs: Sequence[KeptRun]) -> Iterator[Impact]:
    for host, unit in dict.fromkeys((run.record.host, run.record.unit) for run in runs):
        of_unit = [run for run in runs if (run.record.host, run.record.unit) == (host, unit)]
        deaths = sorted((death for run in of_unit for death in _deaths(run)), key=lambda found: found.at or _LAST)
        if not deaths:
            continue
        ready = sorted((up for run in of_unit for up in _ready(run)), key=lambda found: found.at or _LAST)
        last = deaths[-1].at
        ended = next((up for up in ready if up.at and last and up.at >= last), None)
        counted = [n for run in of_unit for n in _restarts(run)]
        yield Impact(host=host, unit=unit, began=deaths[0], ended=ended, n_restarts=max(counted, default=None))


def _deaths(run: KeptRun) -> Iterator[Found]:
    """Each end of the unit's process that the record tells: of a start that was watched, and as systemd had it."""
    watched = [crash for name in STARTS if (crash := section_value(run.record, name).get("crash"))]
    for crash in watched:
        if died_at := crash.get("died_at"):
            at = datetime.fromisoformat(died_at) - offset_of(run)
            yield Found(text=str(crash.get("text", "")), at=at, record=run.name, file="record.json")
    if watched:  # systemd tells the same death again, by the second
        return
    for path, text in run.files.items():
        if path.endswith("unit-properties.json"):
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                status = json.loads(text)
                if status.get("exec_main_exit_at") and status.get("result") != "success":
                    at = datetime.fromisoformat(status["exec_main_exit_at"]) - offset_of(run)
                    yield Found(text=f"systemd: result {status['result']}", at=at, record=run.name, file=path)


def _restarts(run: KeptRun) -> Iterator[int]:
    """How often systemd had started the unit again by itself, as often as it was asked."""
    values = [section_value(run.record, name) for name in (*STARTS, "show-unit")]
    for path, text in run.files.items():
        if path.endswith("unit-properties.json"):
            with suppress(ValueError, RecursionError):
                values.append(json.loads(text))
    known = (value.get("n_restarts") for value in values if isinstance(value, Mapping))
    yield from (n_restarts for n_restarts in known if isinstance(n_restarts, int))


def _ready(run: KeptRun) -> Iterator[Found]:
    for kept in run.events:
        event = kept.event
        if event.get("section") in STARTS and str(event.get("text", "")).startswith("ready: "):
            with suppress(ValueError):
                at = datetime.fromisoformat(str(event.get("at")))
                yield Found(text=str(event["text"]), at=at, record=run.name, file="events.jsonl", line=kept.line)


def _detected(runs: Sequence[KeptRun], began: Found | None) -> Found | None:
    """The first that any record knew of the trouble: a watched crash as it was seen, else the run that came to look."""
    if began is None or began.at is None:
        return None
    seen: list[Found] = []
    for run in runs:
        if run.record.started_at >= began.at:
            seen.append(_found(run, f"{run.record.runbook} was begun", at=run.record.started_at))
        for name in STARTS:
            crash = section_value(run.record, name).get("crash") or {}
            if crash.get("seen_at"):
                at = datetime.fromisoformat(crash["seen_at"]) - offset_of(run)
                seen.append(
                    _found(run, f"seen in the {crash.get('noticed_by') or 'watch'} by {run.record.runbook}", at=at)
                )
    return min((found for found in seen if found.at), key=lambda found: found.at or _LAST, default=None)


def _found(run: KeptRun, text: str, at: datetime | None = None) -> Found:
    return Found(text=text, at=at, record=run.name, file="record.json")


def _causes(runs: Sequence[KeptRun]) -> Iterator[Found]:
    """Each cause once, in the order in which the records came to it."""
    told: set[str] = set()
    for run in runs:
        cause = cause_of(run.record)
        if not cause or cause in told:
            continue
        told.add(cause)
        diagnosis = section_value(run.record, "investigate").get("diagnosis", {})
        section = next((entry for entry in run.record.sections if entry.name == "investigate"), None)
        confidence = f" ({diagnosis['confidence']} confidence)" if diagnosis.get("confidence") else ""
        summary = diagnosis.get("summary") or (run.record.outcome.reason if run.record.outcome else "")
        yield _found(
            run, f"{cause}{confidence}: {summary}", at=section.started_at if section else run.record.started_at
        )


def _tried(runs: Sequence[KeptRun]) -> Iterator[Found]:
    for run in runs:
        for section in run.record.sections:
            if section.name in _ACTS and section.summary not in {"nothing crashed", "not needed"}:
                text = f"{section.name} ({section.state.value}): {section.summary}"
                text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}…"
                yield _found(run, text, at=section.started_at)


def _cures(runs: Sequence[KeptRun]) -> Iterator[Found]:
    """What a record itself calls the cure; else what differs between the last failure and the first start after it."""
    for at, run in enumerate(runs):
        if change := cured_by(run.record):
            yield _found(run, f"{change} cured {cause_of(run.record) or 'it'}", at=run.record.ended_at)
        elif has_come_up(run.record) and at and (failed := _failed_before(runs[:at], run)):
            differs = _flag_changes(failed, run)
            said = f"flags that differ: {differs}" if differs else "no flag differs that both records know"
            yield _found(run, f"came up without a remedy by this kit; {said}", at=run.record.ended_at)


def _failed_before(runs: Sequence[KeptRun], run: KeptRun) -> KeptRun | None:
    same = (run.record.host, run.record.unit)
    last = next((known for known in reversed(runs) if (known.record.host, known.record.unit) == same), None)
    return last if last is not None and cause_of(last.record) and not has_come_up(last.record) else None


def _flag_changes(a: KeptRun, b: KeptRun) -> str:
    old, new = flags_of(a), flags_of(b)
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)] if old and new else []
    return ", ".join(f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}" for name in names)


def _questions(
    runs: Sequence[KeptRun], impacts: Sequence[Impact], causes: Sequence[Found], cures: Sequence[Found]
) -> Iterator[str]:
    if not impacts:
        yield "When did the trouble begin, and when did it end? No record tells the death of a process."
    for impact in impacts:
        if impact.ended is None:
            yield f"Does {impact.unit} on {impact.host} serve again? No record shows it answering after its last crash."
    if impacts:
        yield "Which requests failed meanwhile, and whose? The records don't say whether the unit was serving before."
    if not causes:
        yield "Why did it happen? No record names a cause."
    elif not cures:
        yield "What cured it? No record says."
    for run in runs:
        yield from _questions_of(run)


def _questions_of(run: KeptRun) -> Iterator[str]:
    record, card = run.record, section_value(run.record, "investigate")
    if record.status == "running":
        yield f"{run.name} has not ended yet"
    elif record.status != "finished":
        yield f"{run.name} came to no end of its own ({record.status}): {record.left or 'what did it leave?'}"
    elif record.outcome and record.outcome.state is State.UNKNOWN:
        yield f"{run.name} could not find out: {record.outcome.reason}"
    diagnosis = card.get("diagnosis", {})
    if diagnosis.get("confidence") not in (None, "high") and cause_of(record):
        yield f"Is it really {cause_of(record)}? The verdict's confidence is {diagnosis['confidence']} ({run.name})."
    for missing in card.get("missing", ()):
        yield f"Could not be had: {missing} ({run.name})"
    for entry in attempts_of(record):
        if entry["outcome"] not in {"ready", "applied"}:
            yield f"Why did {entry['change']} not help? It ended in {entry['outcome']} ({run.name})."
    if clock_of(run) is None and any(path.endswith("journal.jsonl") for path in run.files):
        yield f"How far apart were the clocks of {record.host} and of {record.controller}? ({run.name})"
