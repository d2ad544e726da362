"""What earlier records know: when a unit last worked and with what, and where a cause was seen before."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from opslib.domain.record import RunRecord
from opslib.domain.snapshot import Snapshot
from opslib.domain.states import State, Value
from opslib.domain.verdict_card import SeenBefore
from opslib.errors import OpslibError
from opslib.records.folder import RECORD_FILE, RunFolder

_READ = 200  # newest records that are looked at
_MOST = 5
_STARTS = ("relaunch", "launch")


class LastGood(Value):
    """The newest record in which the unit came up, and what it ran with then."""

    folder: str
    snapshot: Snapshot


def last_good(runs_dir: Path, host: str, unit: str, *, besides: str = "") -> LastGood | None:
    """The newest record of this host and unit with a start that became ready; None where there is none."""
    for path, record in _records(runs_dir, besides):
        if (record.host, record.unit) != (host, unit):
            continue
        for section in record.sections:
            value = section.value if isinstance(section.value, dict) else {}
            if section.name in _STARTS and section.state is State.OK and "snapshot" in value:
                with suppress(ValueError):
                    return LastGood(folder=path.name, snapshot=Snapshot.model_validate(value["snapshot"]))
    return None


def seen_before(runs_dir: Path, cause: str, *, besides: str = "") -> tuple[SeenBefore, ...]:
    """The newest records with this cause, at most five, newest first; none for "none" and "unknown"."""
    if "/" not in cause:
        return ()
    found: list[SeenBefore] = []
    for path, record in _records(runs_dir, besides):
        if record.cause != cause or len(found) >= _MOST:
            continue
        summary = record.outcome.reason if record.outcome else record.status
        at = record.started_at.strftime("%Y-%m-%d %H:%M")
        found.append(SeenBefore(folder=path.name, host=record.host, unit=record.unit, seen_at=at, summary=summary))
    return tuple(found)


def _records(runs_dir: Path, besides: str) -> Iterator[tuple[Path, RunRecord]]:
    """The newest records, but for the folder of that name; one that can't be read is passed over."""
    try:
        paths = sorted((path for path in runs_dir.iterdir() if (path / RECORD_FILE).is_file()), reverse=True)
    except OSError:
        return
    for path in paths[:_READ]:
        if path.name != besides:
            with suppress(OpslibError):
                if record := RunFolder.open(path).read_record():
                    yield path, record
