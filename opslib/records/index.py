"""The records in a directory, newest first; a run whose process is gone reads as interrupted.

What a list shows of each record is kept in `.index.sqlite` beside them: a cache, by time and size of `record.json`,
that may be deleted at any time. A damaged one is made anew; where it can't be written, the list is made without it.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from stat import S_ISREG

from opslib.domain.record import RunRecord
from opslib.domain.run_facts import best_throughput, cause_of, cured_by, has_come_up
from opslib.domain.states import Value
from opslib.errors import OpslibError
from opslib.records.alive import is_alive
from opslib.records.find import is_sealed
from opslib.records.folder import RECORD_FILE, RunFolder
from opslib.records.index_cache import IndexCache, Stamp

INDEX_FILE = ".index.sqlite"


class RecordEntry(Value):
    """One record in a list: who, what, when, and how it ended."""

    folder: str
    runbook: str = ""
    host: str = ""
    unit: str = ""
    model: str = ""
    ticket: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    status: str = "unreadable"
    state: str | None = None  # of the outcome
    reason: str = ""
    is_dry_run: bool = False
    cause: str = ""  # the failure's id
    cured_by: str = ""  # the change after which the unit came up
    has_come_up: bool = False  # whether the unit was started and answered
    output_throughput: float | None = None  # tokens per second at the best level that was measured
    controller: str = ""
    process_id: int | None = None
    user: str = ""  # who began it, and the engine's task where one did
    last_section: str = ""

    @property
    def shown_state(self) -> str:
        """The outcome's state, or the run's status where it has none of its own."""
        return self.state if self.state and self.status == "finished" else self.status

    @property
    def name(self) -> str:
        """The name of the record's folder."""
        return self.folder.rpartition("/")[2]


def list_records(runs_dir: Path) -> list[RecordEntry]:
    """All records below `runs_dir`, newest first; one that can't be read is listed with the reason."""
    stamps = record_stamps(runs_dir)
    cache = IndexCache(runs_dir / INDEX_FILE, RecordEntry)
    entries = cache.load(stamps) if stamps else {}
    fresh = {name: _read(runs_dir / name) for name in stamps if name not in entries}
    cache.store({name: (stamps[name], entry) for name, entry in fresh.items()}, gone=cache.names - stamps.keys())
    entries |= fresh
    place = str(runs_dir)
    return [_as_it_is(entries[name], f"{place}/{name}") for name in sorted(stamps, reverse=True)]


def record_stamps(runs_dir: Path) -> dict[str, Stamp]:
    """The names of the record folders with time (ns) and size of each one's facts; none where there is no directory.

    A folder with a seal was a record: where its facts are gone it is listed all the same.
    """
    stamps: dict[str, Stamp] = {}
    try:
        names = os.listdir(runs_dir)  # noqa: PTH208 - ten thousand of them, and stat is all that is asked
    except OSError:
        return {}
    for name in names:
        found = None
        with suppress(OSError):
            found = os.stat(f"{runs_dir}/{name}/{RECORD_FILE}")  # noqa: PTH116
        if found and S_ISREG(found.st_mode):  # a FIFO would keep its reader waiting
            stamps[name] = (found.st_mtime_ns, found.st_size)
        elif is_sealed(f"{runs_dir}/{name}"):
            stamps[name] = (0, 0)
    return stamps


def read_entry(path: Path) -> RecordEntry:
    """The list entry of one record folder."""
    return _as_it_is(_read(path), str(path))


def _read(path: Path) -> RecordEntry:
    try:
        record = RunFolder.open(path).read_record()
    except OpslibError as error:
        return RecordEntry(folder=str(path), reason=error.message.removeprefix(f"{path.resolve()}/"))
    if record is None:
        return RecordEntry(folder=str(path), reason=f"no {RECORD_FILE}")
    return _entry_of(record, str(path))


def _entry_of(record: RunRecord, folder: str) -> RecordEntry:
    return RecordEntry(
        folder=folder,
        runbook=record.runbook,
        host=record.host,
        unit=record.unit,
        model=str(record.parameters.get("model") or ""),
        ticket=record.ticket,
        started_at=record.started_at,
        ended_at=record.ended_at,
        status=record.status,
        state=record.outcome.state.value if record.outcome else None,
        reason=record.outcome.reason if record.outcome else "",
        is_dry_run=record.is_dry_run,
        cause=cause_of(record),
        cured_by=cured_by(record),
        has_come_up=has_come_up(record),
        output_throughput=best_throughput(record),
        controller=record.controller,
        process_id=record.process_id,
        user=record.user,
        last_section=record.sections[-1].name if record.sections else "the beginning",
    )


def _as_it_is(entry: RecordEntry, folder: str) -> RecordEntry:
    """The entry under the folder's name of now; a run that was running is asked whether it still is."""
    changed: dict[str, object] = {} if entry.folder == folder else {"folder": folder}
    if entry.status == "running" and not is_alive(entry.controller, entry.process_id, entry.started_at):
        changed |= {"status": "interrupted", "reason": f"its process is gone; last answer: {entry.last_section}"}
    return entry.model_copy(update=changed) if changed else entry
