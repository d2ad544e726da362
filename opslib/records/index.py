"""The records in a directory, newest first; a run whose process is gone reads as interrupted."""

import os
import socket
from datetime import datetime
from pathlib import Path

from opslib.domain.record import RunRecord
from opslib.domain.states import Value
from opslib.errors import CouldNotFindOut
from opslib.records.folder import RECORD_FILE, RunFolder


class RecordEntry(Value):
    """One record in a list: who, what, when, and how it ended."""

    folder: str
    runbook: str = ""
    host: str = ""
    unit: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    status: str = "unreadable"
    state: str | None = None  # of the outcome
    reason: str = ""

    @property
    def shown_state(self) -> str:
        """The outcome's state, or the run's status where it has none of its own."""
        return self.state if self.state and self.status == "finished" else self.status


def list_records(runs_dir: Path) -> list[RecordEntry]:
    """All records below `runs_dir`, newest first; one that can't be read is listed with the reason."""
    try:
        folders = [path for path in runs_dir.iterdir() if (path / RECORD_FILE).is_file()]
    except FileNotFoundError:
        return []
    return [read_entry(path) for path in sorted(folders, key=lambda path: path.name, reverse=True)]


def read_entry(path: Path) -> RecordEntry:
    """The list entry of one record folder."""
    try:
        record = RunFolder.open(path).read_record()
    except CouldNotFindOut as error:
        return RecordEntry(folder=str(path), reason=error.message)
    if record is None:
        return RecordEntry(folder=str(path), reason=f"no {RECORD_FILE}")
    is_gone = record.status == "running" and not is_process_alive(record)
    last = record.sections[-1].name if record.sections else "the beginning"
    return RecordEntry(
        folder=str(path),
        runbook=record.runbook,
        host=record.host,
        unit=record.unit,
        started_at=record.started_at,
        ended_at=record.ended_at,
        status="interrupted" if is_gone else record.status,
        state=record.outcome.state.value if record.outcome else None,
        reason=f"its process is gone; last answer: {last}"
        if is_gone
        else record.outcome.reason
        if record.outcome
        else "",
    )


def is_process_alive(record: RunRecord) -> bool:
    """Whether the run's process may still be there; that of another machine can't be asked and counts as alive."""
    if record.controller and record.controller != socket.gethostname():
        return True
    try:
        os.kill(record.process_id or -1, 0) if record.process_id else None
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return record.process_id is not None
