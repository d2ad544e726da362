"""A record in at most fifteen lines, for a ticket or a hand-over."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.redaction import redact
from opslib.domain.run_facts import KeptRun, attempts_of, cause_of, figures_of, flags_of, section_value, versions_of
from opslib.domain.states import State

MOST_LINES = 15
WIDEST = 100
_FIRST = 12  # width of the names in front
_MORE = {
    "ended": 2,
    "left": 1,
    "decided by": 1,
    "changed": 1,
    "flags": 1,
}  # lines that may be added, where there is room


def brief(run: KeptRun) -> tuple[str, ...]:
    """What ran where, how it ended, why, what was done about it, and what it runs with now; redacted once more.

    Each thing has a line; how it ended, the deciding line, the changes and the flags may take more, as there is room.
    """
    told = [
        (name, textwrap.wrap(redact(text), WIDEST - _FIRST, break_on_hyphens=False))
        for name, text in _told(run)
        if text
    ]
    room = MOST_LINES - len(told)
    lines: list[str] = []
    for name, wrapped in told:
        n_more = min(room, len(wrapped) - 1, _MORE.get(name, 0))
        room -= n_more
        kept = wrapped[: 1 + n_more]
        if len(kept) < len(wrapped):
            kept[-1] = f"{kept[-1][: WIDEST - _FIRST - 1].rstrip()}…"
        lines += [f"{first:<{_FIRST}}{line}" for first, line in zip((name, *[""] * n_more), kept, strict=True)]
    return tuple(lines[:MOST_LINES])


def _told(run: KeptRun) -> Iterator[tuple[str, str]]:
    record = run.record
    state = record.outcome.state.value if record.outcome else record.status
    kind = " (dry run)" if record.is_dry_run else ""
    yield "run", f"{record.runbook}{kind} on {record.host}, {record.unit}: {state}"
    yield "ticket", record.ticket
    ended = f" to {record.ended_at:%H:%M:%S}" if record.ended_at else f" ({record.status})"
    yield "when", f"{record.started_at:%Y-%m-%d %H:%M:%S}{ended} UTC, by {record.user or 'unknown'}"
    yield "ended", record.outcome.reason if record.outcome else "no outcome was recorded"
    yield "left", record.left
    diagnosis = section_value(record, "investigate").get("diagnosis", {})
    cause = cause_of(record)
    yield "cause", f"{cause}{_confidence(diagnosis)}" if cause else ""
    quoted = diagnosis.get("evidence", ())
    yield "decided by", f"{quoted[0].get('process', '')}: {quoted[0].get('text', '')}".lstrip(": ") if quoted else ""
    yield "tried", "; ".join(f"{entry['change']} ({entry['outcome']})" for entry in attempts_of(record))
    yield "changed", "; ".join(dict.fromkeys(_changes(record.sections)))
    yield (
        "not ok",
        ", ".join(f"{entry.name} {entry.state.value}" for entry in record.sections if entry.state != State.OK),
    )
    versions = versions_of(run)
    named = (f"{name} {versions[name]}" for name in ("engine", "GPU driver", "opslib") if name in versions)
    yield "versions", ", ".join(named)
    yield "flags", " ".join(f"{name} {value}".strip() for name, value in flags_of(run).items())
    yield "measured", str(section_value(record, "benchmark").get("summary") or "") or _ready(figures_of(record))
    yield "record", run.name


def _confidence(diagnosis: Mapping[str, Any]) -> str:
    return f" ({diagnosis['confidence']} confidence)" if diagnosis.get("confidence") else ""


def _changes(sections: Any) -> Iterator[str]:
    """What was written on the host, by the sections that write."""
    for section in sections:
        if section.name in {"install", "remedy", "rollback"} and isinstance(section.value, Mapping):
            done = section.value.get("applied") or section.value
            titles = (str(step["title"]) for step in done.get("steps", ()) if step.get("state") == "ok")
            yield from (re.sub(r"(?<=\s)/\S*/", "", title) for title in titles)


def _ready(figures: Mapping[str, float]) -> str:
    return f"ready after {figures['ready_after_s']:.0f} s" if "ready_after_s" in figures else ""
