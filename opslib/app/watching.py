"""A launch on the screen and in the record: the tracker's updates feed one panel and one event file."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from opslib.app.launch_controls import LaunchControls
from opslib.app.launch_history import read_durations
from opslib.app.live import iterate
from opslib.app.run import Run
from opslib.app.screen import Screen
from opslib.domain.engine_figures import EngineFigures
from opslib.domain.launch_events import Aborted, event_document
from opslib.domain.launch_record import LaunchUpdate, WatchHead, abort_watch
from opslib.domain.launch_status import LaunchStatus
from opslib.domain.launch_story import LaunchStory, Mark
from opslib.errors import CouldNotFindOut
from opslib.records.watch_file import WatchFile
from opslib.views.launch import launch_panel, phase_words
from opslib.views.shown import Shown
from opslib.workflow.launch import Start, watch_launch

_QUARTER = 25
_REFRESH_S = 0.25  # a panel is repainted at most this often; its last state always


class LaunchPanel:
    """What is shown of one launch: repainted while it goes on, and its last state stays in the file."""

    def __init__(self, run: Run, section: str) -> None:
        self._run = run
        self._section = section
        self._file = WatchFile(run.folder.path / f"watch-{section}.jsonl", secrets=run.folder.secrets)
        self._file_problem = ""
        self._screen = Screen()
        self._painted_at = 0.0
        self._quarter = ("", 0)  # phase, and how many quarters of it were told
        self._level, self._search = "DEBUG", ""
        self._story = LaunchStory()

    @property
    def status(self) -> LaunchStatus | None:
        """All that is known of the launch, None before anything was seen."""
        return self._story.status

    @property
    def timeline(self) -> list[Mark]:
        """What was seen, and when."""
        return self._story.timeline

    @property
    def figures(self) -> EngineFigures:
        """What the engine printed of itself during this start."""
        return self._story.figures

    def begin(self, head: WatchHead) -> None:
        """Write down what a replay needs before the first event."""
        self._file.append(head.model_dump(mode="json", exclude_defaults=True) | {"event": "begin"})

    def take(self, update: LaunchUpdate) -> None:
        """Take one update in: to the record what changed, to the screen the whole picture."""
        self._file.append(event_document(update.event))
        for text in self._story.take(update):
            self._tell("line", text)
        if self._file.problem and self._file.problem != self._file_problem:
            self._tell("line", f"warning: {self._file.problem}")
        self._file_problem = self._file.problem
        self._tell_quarter(update.status)
        is_verdict = update.status.state.is_final and any(change.what == "state" for change in update.changes)
        if is_verdict or time.monotonic() - self._painted_at > _REFRESH_S:
            self._paint()

    def close(self) -> None:
        """Nothing more comes: the last state stays on the screen and in the file."""
        self._file.flush()
        if self.status:
            self._paint()

    def abort(self, reason: str = "") -> None:
        """End the watch for the operator, on the screen and in the file; the unit goes on."""
        if self.status and not self.status.state.is_final:
            self.take(abort_watch(self.status, Aborted(at=datetime.now(UTC), reason=reason)))

    def choose(self, *, level: str, search: str) -> None:
        """Show only these lines of the journal."""
        self._level, self._search = level, search
        if self.status:
            self._paint()

    def shown(self) -> Shown:
        """The picture as it stands."""
        unit = self._run.parameters.unit
        return launch_panel(self._run.alias, unit, self._story, level=self._level, search=self._search)

    def _tell(self, kind: str, text: str) -> None:
        assert self.status is not None
        with suppress(CouldNotFindOut):  # a full disk ends no watch; the watch's own file says so and catches up
            self._run.tell(kind, text, section=self._section, elapsed_s=round(self.status.elapsed_s, 1))

    def _tell_quarter(self, status: LaunchStatus) -> None:
        """The progress of a phase is told in quarters."""
        phase_id, quarter = status.phase.id if status.phase else "", (status.percent or 0) // _QUARTER
        known_id, known = self._quarter
        if phase_id != known_id:
            self._quarter = (phase_id, 0)
        elif quarter > known:
            self._quarter = (phase_id, quarter)
            self._tell("progress", phase_words(status))

    def _paint(self) -> None:
        self._screen.paint(self.shown())
        self._painted_at = time.monotonic()


async def watch(run: Run, section: str, start: Start) -> tuple[LaunchStatus, LaunchPanel]:
    """Watch a start to its end: ready, crashed, failed, the time is up, or the operator wants no more of it."""
    panel = LaunchPanel(run, section)
    parameters = run.parameters
    source = partial(
        watch_launch,
        run.host,
        parameters.unit,
        port=parameters.port,
        timeout_s=parameters.ready_timeout_s,
        start=start,
        stall_s=parameters.stall_s,
        has_gpus=bool(parameters.gpus),
        earlier=read_durations(run.folder.path.parent, run.alias, parameters.unit),
        on_begin=panel.begin,
    )
    controls = LaunchControls(run, section, on_choose=panel.choose)
    try:
        async for update in iterate(source, stopped=controls.aborted):
            panel.take(update)
            controls.show()
        panel.abort()
    except (KeyboardInterrupt, asyncio.CancelledError):
        panel.abort("the watch was interrupted; the unit goes on")
        raise
    finally:
        panel.close()
        await controls.close()
    if panel.status is None:
        raise CouldNotFindOut("the watch ended before anything was seen", host=run.alias)
    return panel.status, panel
