"""A watch as it is written down, one JSON object a line, and played again: the same events give the same picture."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from opslib.domain.facts.restart_budget import RestartBudget
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch import LaunchTracker
from opslib.domain.launch_events import Aborted, LaunchEvent, parse_event
from opslib.domain.launch_status import ABORT_WORDS, FINAL, LaunchChange, LaunchState, LaunchStatus, status_changes
from opslib.domain.states import Value


class LaunchUpdate(Value):
    """One event of a watch, what it changed, and all that is known after it."""

    event: LaunchEvent
    changes: tuple[LaunchChange, ...]
    status: LaunchStatus


class WatchHead(Value):
    """What a watch began with: all that its events need to be understood again."""

    event: str = "begin"
    host: str
    unit: str
    began_at: datetime
    before: UnitStatus | None = None
    present: str = ""
    stall_s: float = 900.0
    ends_at: tuple[LaunchState, ...] = tuple(sorted(FINAL))
    earlier: tuple[dict[str, float], ...] = ()
    budget: RestartBudget | None = None

    def tracker(self) -> LaunchTracker:
        """A tracker that nothing was fed to yet."""
        return LaunchTracker(
            self.began_at,
            before=self.before,
            present=self.present,
            stall_s=self.stall_s,
            unit=self.unit,
            ends_at=self.ends_at,
            earlier=self.earlier,
            budget=self.budget,
        )


def replay_watch(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[WatchHead, LaunchUpdate]]:
    """The updates of the watches that were written down, each with its head; what can't be read is passed over."""
    head: WatchHead | None = None
    tracker: LaunchTracker | None = None
    for document in documents:
        if document.get("event") == "begin":
            head = _head(document)
            tracker = head.tracker() if head else None
        elif head and tracker and (event := parse_event(document)):
            changes = tracker.feed(event)
            yield head, LaunchUpdate(event=event, changes=changes, status=tracker.status)


def abort_watch(status: LaunchStatus, event: Aborted) -> LaunchUpdate:
    """The last update of a watch that its operator ends, as a tracker that was fed the event would give it."""
    at = max(event.at, status.at)
    after = status.model_copy(
        update={"at": at, "state": LaunchState.ABORTED, "reason": event.reason or ABORT_WORDS, "eta_s": None}
    )
    return LaunchUpdate(event=event, changes=status_changes(status, after), status=after)


def _head(document: Mapping[str, Any]) -> WatchHead | None:
    try:
        return WatchHead.model_validate({name: document[name] for name in WatchHead.model_fields if name in document})
    except ValueError:
        return None
