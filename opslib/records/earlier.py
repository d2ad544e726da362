"""What earlier records know: when a unit last worked and with what, and where a cause was seen before."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from opslib.domain.run_facts import STARTS
from opslib.domain.snapshot import Snapshot
from opslib.domain.states import State, Value
from opslib.domain.verdict_card import SeenBefore
from opslib.errors import OpslibError
from opslib.records.folder import RunFolder
from opslib.records.index import RecordEntry, list_records


class LastGood(Value):
    """The newest record in which the unit came up, and what it ran with then."""

    folder: str
    snapshot: Snapshot


def last_good(runs_dir: Path, host: str, unit: str, *, besides: str = "") -> LastGood | None:
    """The newest record of this host and unit with a start that became ready; None where there is none."""
    for entry in list_records(runs_dir):
        if entry.has_come_up and (entry.host, entry.unit) == (host, unit) and entry.name != besides:
            for snapshot in _snapshots(Path(entry.folder)):
                return LastGood(folder=entry.name, snapshot=snapshot)
    return None


def seen_before(runs_dir: Path, cause: str, *, besides: str = "") -> tuple[SeenBefore, ...]:
    """All records with this cause, newest first; none for "none" and "unknown"."""
    if "/" not in cause:
        return ()
    return tuple(_seen(entry) for entry in list_records(runs_dir) if entry.cause == cause and entry.name != besides)


def _seen(entry: RecordEntry) -> SeenBefore:
    return SeenBefore(
        folder=entry.name,
        host=entry.host,
        unit=entry.unit,
        seen_at=entry.started_at.strftime("%Y-%m-%d %H:%M") if entry.started_at else "",
        summary=entry.reason or entry.status,
        cured_by=entry.cured_by,
    )


def _snapshots(path: Path) -> Iterator[Snapshot]:
    with suppress(OpslibError):
        record = RunFolder.open(path).read_record()
        for section in record.sections if record else ():
            value = section.value if isinstance(section.value, dict) else {}
            if section.name in STARTS and section.state is State.OK and "snapshot" in value:
                with suppress(ValueError):
                    yield Snapshot.model_validate(value["snapshot"])
