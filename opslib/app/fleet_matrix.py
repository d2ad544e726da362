"""How far each host's run of a rollout has come, read from the records: for the live panel and for the page alike."""

from pathlib import Path
from typing import Any

from opslib.app.index import link_to
from opslib.app.reviewing import document_of
from opslib.domain.rollout_state import RolloutState
from opslib.domain.states import State
from opslib.records.folder import EVENTS_FILE, RunFolder
from opslib.records.index import read_entry
from opslib.views.fleet import Reached, fleet_panel
from opslib.views.shown import Shown


class FleetMatrix:
    """Pictures of one rollout; what was read of a host's run is read again only where that has gone on.

    Links lead from `base`, None: from where the notebook runs.
    """

    def __init__(self, runs_dir: Path, base: Path | None = None) -> None:
        self._runs_dir = runs_dir
        self._base = base
        self._read: dict[str, tuple[int, Reached]] = {}  # record -> size of its events, what they say

    def shown(self, state: RolloutState) -> Shown:
        """The picture of this state."""
        return fleet_panel(
            state, {progress.host: self._sections(progress.record) for progress in state.hosts}, self.link
        )

    def link(self, record: str) -> str:
        """What opens a host's record: its page once it is there, else its notebook."""
        return link_to(document_of(read_entry(self._runs_dir / record)), self._base)

    def _sections(self, record: str) -> Reached:
        events = self._runs_dir / record / EVENTS_FILE
        if not record or not events.is_file():
            return {}
        size = events.stat().st_size
        if self._read.get(record, (-1, {}))[0] != size:
            self._read[record] = (size, sections_reached(events.parent))
        return self._read[record][1]


def sections_reached(folder: Path) -> Reached:
    """Each section that a run has begun, in their order, with its state where it has ended."""
    found: dict[str, State | None] = {}
    for event in RunFolder.open(folder).events():
        name: Any = event.get("section")
        if event.get("kind") == "section-started":
            found[name] = None
        elif event.get("kind") == "section-ended":
            found[name] = State(event["state"]) if event.get("state") else None
    return found
