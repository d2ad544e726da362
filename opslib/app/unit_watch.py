"""A unit that is watched outside a runbook: live, or played again from the event file of a record."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from opslib.app.binding import check_alias, open_bound_host
from opslib.app.catalogue import default_runs_dir
from opslib.app.launch_history import read_durations
from opslib.domain.host import Host
from opslib.domain.launch_events import Aborted, LaunchEvent, event_document
from opslib.domain.launch_record import LaunchUpdate, WatchHead, replay_watch
from opslib.domain.launch_status import FINAL, LaunchState
from opslib.domain.launch_story import LaunchStory
from opslib.errors import CouldNotFindOut, UnknownName
from opslib.records.watch_file import WatchFile, read_watch_file, watch_files
from opslib.workflow.facts import gather_unit_status, unknown_unit
from opslib.workflow.launch import watch_launch

# A crash that systemd answers with a new start is not the end of it.
_UNTIL_READY = FINAL - {LaunchState.CRASHED}
_ON_AND_ON = _UNTIL_READY - {LaunchState.READY}


def watch_unit(
    host: str,
    unit: str,
    *,
    port: int = 8000,
    timeout_s: float | None = None,
    stall_s: float = 900.0,
    has_gpus: bool = True,
    goes_on: bool = False,
    events: Path | None = None,
    on_problem: Callable[[str], None] = lambda _: None,
) -> Iterator[LaunchUpdate]:
    """What is seen of a unit until it is ready or failed (with `goes_on`: until it failed), kept in the file `events`.

    Closed early, the file ends with "aborted by the operator", and the unit goes on. Raises UnknownName for a host
    that is not in the inventory or a unit that it knows nothing of, and what `watch_launch` raises.
    """
    check_alias(host)
    opened = open_bound_host(host)
    _refuse_unknown(opened, unit)
    kept = _KeptEvents(events, on_problem)
    updates = watch_launch(
        opened,
        unit,
        port=port,
        timeout_s=timeout_s,
        stall_s=stall_s,
        has_gpus=has_gpus,
        ends_at=_ON_AND_ON if goes_on else _UNTIL_READY,
        earlier=read_durations(default_runs_dir(), host, unit),
        on_begin=kept.begin,
    )
    try:
        for update in updates:
            kept.take(update.event)
            yield update
    except (GeneratorExit, KeyboardInterrupt):
        kept.take(Aborted(at=datetime.now(UTC)))
        raise
    finally:
        updates.close()  # type: ignore[attr-defined]
        kept.close()
        opened.close()


class _KeptEvents:
    """The event file of a watch, where one is wanted; `on_problem` hears when it can't be written, and can be again."""

    def __init__(self, path: Path | None, on_problem: Callable[[str], None]) -> None:
        self._file = WatchFile(path) if path else None
        self._on_problem = on_problem
        self._told = ""

    def begin(self, head: WatchHead) -> None:
        if self._file:
            self._file.append(head.model_dump(mode="json", exclude_defaults=True) | {"event": "begin"})

    def take(self, event: LaunchEvent) -> None:
        if self._file is None:
            return
        self._file.append(event_document(event))
        if self._file.problem != self._told:
            self._told = self._file.problem
            self._on_problem(self._told or "the event file can be written again, nothing is missing from it")

    def close(self) -> None:
        if self._file:
            self._file.flush()


def _refuse_unknown(host: Host, unit: str) -> None:
    """Refuse a unit that there isn't; a host that does not answer yet is waited for by the watch itself."""
    try:
        is_installed = gather_unit_status(host, unit).is_installed
    except CouldNotFindOut:
        return
    if not is_installed:
        host.close()
        raise unknown_unit(host, unit)


def replay_unit(path: Path) -> Iterator[tuple[WatchHead, LaunchUpdate]]:
    """The updates of a record's watches (or of one event file), as they were seen then.

    Raises UnknownName where there is no such file or record, CouldNotFindOut where nothing in it can be read.
    """
    if not path.exists():
        raise UnknownName(f"there is no record or event file {path}")
    files = watch_files(path) if path.is_dir() else (path,)
    n_read = 0
    for file in files:
        for update in replay_watch(read_watch_file(file)):
            n_read += 1
            yield update
    if not n_read:
        raise CouldNotFindOut(f"{path} holds no events of a watch")


def replay_stories(path: Path) -> list[tuple[WatchHead, LaunchStory]]:
    """Each watch of a record (or of one event file) as a story that is told to its last event.

    Raises what `replay_unit` raises.
    """
    stories: list[tuple[WatchHead, LaunchStory]] = []
    for head, update in replay_unit(path):
        if not stories or stories[-1][0] is not head:
            stories.append((head, LaunchStory()))
        stories[-1][1].take(update)
    return stories
