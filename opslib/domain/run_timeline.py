"""One time line over several records: what the hosts logged, what was seen of them, and what operators did.

Times of a host are put on the clock of the machine that the run was started on, by the difference that the record
keeps, where that is larger than it could be measured.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from opslib.domain.facts.journal import JournalEntry
from opslib.domain.journal_text import parse_input
from opslib.domain.run_facts import KeptRun, section_value
from opslib.domain.run_rows import Source, TimelineRow, clock_of, offset_of, row_of, said
from opslib.domain.run_watched import watched_rows
from opslib.domain.states import State, Value

_ACTING = {"confirm", "install", "remedy", "launch", "relaunch", "rollback", "canary", "drain"}
_TELLING = {"investigate", "benchmark", "verify-download", "plan-memory", "preflight", "lint", *_ACTING}
_SEEN: dict[str, Source] = {"unit": "unit", "health": "health", "gpu": "gpu", "guard": "gpu"}
_WATCHED = {"launch", "relaunch"}
_ENDS = {"ready": State.OK, "crashed": State.CRITICAL, "failed": State.CRITICAL, "timed_out": State.CRITICAL}
_KERNEL = re.compile(
    r"Xid|NVRM: (?!loading)|[Oo]ut of memory|oom[-_ ]|[Kk]illed process|segfault|general protection|Call Trace|"
    r"I/O error|hung task|blocked for more|EXT4-fs error|XFS .*[Cc]orrupt|link (?:is )?[Dd]own|thermal|MCE|EDAC"
)
_GIB = 2**30
_SURE = 200  # characters by which a quoted line is found again


class Timeline(Value):
    """The rows in order of time, and what must be known to read them."""

    rows: tuple[TimelineRow, ...] = ()
    notes: tuple[str, ...] = ()


def timeline(runs: Sequence[KeptRun], *, is_whole: bool = False) -> Timeline:
    """Everything that the records say happened, each thing once; `is_whole` takes every line of journals and kernel.

    Without it a journal gives systemd's own lines and those that a verdict quotes, the kernel what concerns GPUs,
    memory, disks and killed processes.
    """
    ordered = sorted(runs, key=lambda run: (run.record.started_at, run.name))
    seen: set[tuple[str, ...]] = set()
    rows: list[TimelineRow] = []
    for run in ordered:
        for key, row in _rows(run, is_whole=is_whole):
            if key not in seen:
                seen.add(key)
                rows.append(row)
    rows.sort(key=lambda row: row.at)  # stable: what was written first stands first
    return Timeline(rows=tuple(rows), notes=tuple(_notes(ordered)))


def _rows(run: KeptRun, *, is_whole: bool) -> Iterator[tuple[tuple[str, ...], TimelineRow]]:
    for row in (*_from_record(run), *_from_events(run), *_from_gpus(run)):
        yield (row.record, row.file, str(row.line), row.text), row
    yield from _from_journals(run, is_whole=is_whole)
    yield from _from_kernel(run, is_whole=is_whole)
    yield from watched_rows(run, is_whole=is_whole)


def _from_record(run: KeptRun) -> Iterator[TimelineRow]:
    record = run.record
    who = f"{record.user or 'somebody'} begins {record.runbook}"
    yield row_of(run, record.started_at, "operator", who, "record.json")
    for action in record.actions:
        if action.what != "ran":
            text = f"{action.user} {'unfreezes' if action.what == 'unfroze' else 'is refused'} {action.section}"
            yield row_of(run, action.at, "operator", f"{text}: {action.detail}".rstrip(": "), "record.json")
    if record.status == "interrupted" and record.ended_at:
        reason = record.outcome.reason if record.outcome else "interrupted"
        yield row_of(run, record.ended_at, "run", reason, "record.json", state=State.UNKNOWN)


def _from_events(run: KeptRun) -> Iterator[TimelineRow]:
    for kept in run.events:
        event = kept.event
        kind, section = str(event.get("kind", "")), str(event.get("section", ""))
        text = str(event.get("text", ""))
        source = _source_of(kind, section, text)
        seen = _ENDS.get(text.partition(":")[0]) if source == "engine" else None
        state = State(event["state"]) if event.get("state") in set(State) else seen
        try:
            at = datetime.fromisoformat(str(event.get("at")))
        except ValueError:
            continue
        if source is None or (kind == "section-ended" and section not in _TELLING):
            continue
        named = run.record.runbook if kind == "outcome" else section if kind in {"section-ended", "diff"} else ""
        said = f"{named}: {text}" if named else text
        yield row_of(run, at, source, said, "events.jsonl", line=kept.line, state=state)


def _source_of(kind: str, section: str, text: str) -> Source | None:
    """Who says it; None for what belongs in no time line (progress, tables, questions)."""
    if kind in {"section-ended", "outcome"}:
        return "run"
    if kind == "diff":
        return "operator" if section == "remedy" else None
    if kind != "line":
        return None
    if section in _WATCHED and not text.startswith("starting "):
        return _SEEN.get(text.partition(":")[0], "engine")
    return "operator" if section in _ACTING else None


def _from_gpus(run: KeptRun) -> Iterator[TimelineRow]:
    """GPU memory as it was found with the evidence."""
    for path, text in run.files.items():
        if not path.endswith("/manifest.json"):
            continue
        folder = path.rpartition("/")[0]
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            asked = {row["file"]: row["asked_at"] for row in json.loads(text)["files"] if row.get("file")}
            gpus = json.loads(run.files[f"{folder}/gpus.json"])
            used = [(gpu["index"], gpu["memory_used_bytes"] / _GIB) for gpu in gpus]
            said = ", ".join(f"GPU {index} {size:.1f}" for index, size in used if size >= 0.1) or "none on any GPU"
            at = datetime.fromisoformat(asked["gpus.json"])
            yield row_of(run, at, "gpu", f"memory in use, GiB: {said}", f"{folder}/gpus.json")


def _from_journals(run: KeptRun, *, is_whole: bool) -> Iterator[tuple[tuple[str, ...], TimelineRow]]:
    offset = offset_of(run)
    for path, text in run.files.items():
        if not path.endswith("journal.jsonl"):
            continue
        entries = [entry for entry in parse_input(text, "journal") if entry.realtime_at is not None]
        quoted = set(_quoted_lines(run, entries))
        for entry in entries:
            if is_whole or entry.identifier == "systemd" or entry.line in quoted:
                assert entry.realtime_at is not None
                line = None if entry.line is None else entry.line + 1
                row = row_of(run, entry.realtime_at - offset, "journal", said(entry), path, line=line)
                yield (run.record.host, entry.cursor or f"{path}:{entry.line}"), row


def _quoted_lines(run: KeptRun, entries: Sequence[JournalEntry]) -> Iterator[int | None]:
    """The places of the lines that the verdict rests on; of the same sentence from several processes, the first.

    A verdict counts lines with the kernel's sorted in, so its lines are found by their time and text.
    """
    diagnosis = section_value(run.record, "investigate").get("diagnosis", {})
    told: set[str] = set()
    for quote in (*diagnosis.get("evidence", ()), *diagnosis.get("consequences", ())):
        text, logged_at = str(quote.get("text", "")).strip()[:_SURE], str(quote.get("logged_at", ""))
        sentence = re.sub(r"[\d.]+", "N", text)
        for entry in entries if text and sentence not in told else ():
            is_then = entry.realtime_at is not None and logged_at in ("", entry.realtime_at.isoformat())
            if is_then and text in entry.message:
                told.add(sentence)
                yield entry.line
                break


def _from_kernel(run: KeptRun, *, is_whole: bool) -> Iterator[tuple[tuple[str, ...], TimelineRow]]:
    offset = offset_of(run)
    for path, text in run.files.items():
        if not path.endswith("kernel.txt"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            stamp, message = line[:32], line[33:]
            with suppress(ValueError):
                at = datetime.fromisoformat(stamp)
                if is_whole or _KERNEL.search(message):
                    yield (
                        (run.record.host, stamp, message),
                        row_of(run, at - offset, "kernel", message, path, line=number),
                    )


def _notes(runs: Sequence[KeptRun]) -> Iterator[str]:
    for host, of_host in _by_host(runs).items():
        for run in of_host:
            clock = clock_of(run)
            if clock is not None and offset_of(run):
                way = "ahead of" if clock.offset_s > 0 else "behind"
                apart = f"{abs(clock.offset_s):.1f} s (± {clock.uncertainty_s:.1f} s)"
                whose = f"{way} {run.record.controller}'s"
                yield f"{host}: its clock was {apart} {whose}; its times are corrected ({run.name})"
        if unknown := [run.name for run in of_host if clock_of(run) is None and _has_host_times(run)]:
            yield f"{host}: its clock was not compared; its times stand as it told them ({', '.join(unknown)})"
    controllers = sorted({run.record.controller for run in runs if run.record.controller})
    if len(controllers) > 1:
        yield f"the runs were started on {', '.join(controllers)}: the clocks of these were not compared"


def _by_host(runs: Sequence[KeptRun]) -> dict[str, list[KeptRun]]:
    hosts: dict[str, list[KeptRun]] = {}
    for run in runs:
        hosts.setdefault(run.record.host, []).append(run)
    return hosts


def _has_host_times(run: KeptRun) -> bool:
    return any(path.endswith(("journal.jsonl", "kernel.txt")) for path in run.files)
