"""Closes the records of runs that were killed: nobody was left to write their end."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from opslib.app.completing import complete_record
from opslib.app.ending import interrupted_at, left_on_host, running_section, whereabouts
from opslib.domain.record import RunRecord
from opslib.errors import OpslibError
from opslib.records.alive import is_alive
from opslib.records.folder import RunFolder


def close_killed_runs(folders: Iterable[Path]) -> int:
    """Close those of the records whose run was killed; returns how many there were. One on a full disk has to wait."""
    n_closed = 0
    for folder in folders:
        with suppress(OpslibError):
            n_closed += close_killed(folder) is not None
    return n_closed


def close_killed(path: Path) -> RunRecord | None:
    """Write the end of a run whose process is gone: when it was last heard of, during what, and what it left.

    None for a record that has its end, or whose process may still be there. The notebook stays as it was last saved.
    """
    folder = RunFolder.open(path)
    record = folder.read_record()
    if record is None or record.is_ended:
        return None
    processes = (record.process_id, record.parent_process_id)
    if any(is_alive(record.controller, number, record.started_at) for number in processes if number):
        return None
    heard_at = _last_heard(path, record)
    during = running_section(folder)
    end = interrupted_at(heard_at, whereabouts(record, during))
    ended = record.interrupted(f"{end}: its process is gone; {left_on_host(record, during)}", heard_at)
    folder.write_record(ended)
    complete_record(folder)
    return ended


def _last_heard(path: Path, record: RunRecord) -> datetime:
    """When the run last wrote any of its files."""
    times = [datetime.fromtimestamp(file.stat().st_mtime, UTC) for file in path.rglob("*") if file.is_file()]
    return max((record.started_at, *times))
