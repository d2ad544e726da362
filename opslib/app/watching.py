"""A launch on the screen and in the record: the tracker's updates feed one panel and one event file."""

import time
from collections import deque
from contextlib import suppress

from opslib.app.launch_history import read_durations
from opslib.app.live import iterate
from opslib.app.run import Run
from opslib.app.screen import Screen
from opslib.domain.engine_figures import EngineFigures, read_figures
from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.launch_events import JournalSeen, event_document
from opslib.domain.launch_record import LaunchUpdate, WatchHead
from opslib.domain.launch_status import LaunchState, LaunchStatus, answer_words
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.records.watch_file import WatchFile
from opslib.views.launch import N_JOURNAL_LINES, launch_panel
from opslib.views.shown import Shown
from opslib.workflow.launch import Start, watch_launch

GIB = 2**30
_QUARTER = 25
_ROUTE = "] Route: /"  # dozens of lines, a path each, would push out what the engine said before
_AS_IT_IS = frozenset({"state", "guard", "exit", "note"})
_REFRESH_S = 0.25  # a panel is repainted at most this often; its last state always

STATES = {
    LaunchState.READY: State.OK,
    LaunchState.CRASHED: State.CRITICAL,
    LaunchState.FAILED: State.CRITICAL,
    LaunchState.TIMED_OUT: State.CRITICAL,
    LaunchState.STALLED: State.WARNING,
}


class LaunchPanel:
    """What is shown of one launch: repainted while it goes on, and its last state stays in the file."""

    def __init__(self, run: Run, section: str) -> None:
        self._run = run
        self._section = section
        self._file = WatchFile(run.folder.path / f"watch-{section}.jsonl", secrets=run.folder.secrets)
        self._file_problem = ""
        self._journal: deque[str] = deque(maxlen=N_JOURNAL_LINES)
        self._messages: list[str] = []  # of this invocation, whole
        self._screen = Screen()
        self._painted_at = 0.0
        self._phase = ("", 0)  # id, and how many quarters of it were told
        self.timeline: list[tuple[float, str]] = []
        self.status: LaunchStatus | None = None

    def begin(self, head: WatchHead) -> None:
        """Write down what a replay needs before the first event."""
        self._file.append(head.model_dump(mode="json", exclude_defaults=True) | {"event": "begin"})

    def take(self, update: LaunchUpdate) -> None:
        """Take one update in: to the record what changed, to the screen the whole picture."""
        self.status = update.status
        self._file.append(event_document(update.event))
        if self._file.problem and self._file.problem != self._file_problem:
            self._tell(update.status, f"warning: {self._file.problem}")
        self._file_problem = self._file.problem
        if isinstance(update.event, JournalSeen):
            self._take_entry(update.event.entry)
        for change in update.changes:
            if change.what == "phase":
                self._remember_phase(update.status)
            elif change.what not in {"invocation", "crash"} and change.text:
                text = change.text if change.what in _AS_IT_IS else f"{change.what}: {change.text}"
                self._remember(update.status, text)
        is_final = update.status.state.is_final
        if is_final:
            self._file.flush()
        if is_final or time.monotonic() - self._painted_at > _REFRESH_S:
            self._paint()

    def _take_entry(self, entry: JournalEntry) -> None:
        assert self.status is not None
        if entry.message.strip() and _ROUTE not in entry.message:
            self._journal.append(_last_state(entry.message))
        if entry.invocation_id == self.status.invocation_id:
            self._messages.append(entry.message)

    @property
    def figures(self) -> EngineFigures:
        """What the engine printed of itself during this start."""
        return read_figures(self._messages)

    def _remember(self, status: LaunchStatus, text: str) -> None:
        self._tell(status, text)
        self.timeline.append((status.elapsed_s, text))

    def _tell(self, status: LaunchStatus, text: str) -> None:
        with suppress(CouldNotFindOut):  # a full disk ends no watch; the watch's own file says so and catches up
            self._run.tell("line", text, section=self._section, elapsed_s=round(status.elapsed_s, 1))

    def _remember_phase(self, status: LaunchStatus) -> None:
        """A new phase is a line of the timeline; its progress is told in quarters."""
        if status.phase is None:
            return
        quarter = (status.percent or 0) // _QUARTER
        if status.phase.id != self._phase[0]:
            self._remember(status, status.phase.title)
            self._phase = (status.phase.id, 0)
        elif quarter > self._phase[1]:
            self._phase = (status.phase.id, quarter)
            with suppress(CouldNotFindOut):
                self._run.tell("progress", _phase(status), section=self._section, elapsed_s=round(status.elapsed_s, 1))

    def shown(self) -> Shown:
        """The picture as it stands."""
        assert self.status is not None
        state = STATES.get(self.status.state, State.UNKNOWN)
        summary = f"{self._run.parameters.unit} {self.status.state.value}"
        if words := self.status.waiting_words or self.status.reason:
            summary += f": {words}"
        is_final = self.status.state.is_final
        percent = None if is_final else self.status.percent
        return launch_panel(
            self._run.alias,
            state,
            summary,
            signals=[*_signals(self.status), *(figure_rows(self.figures) if is_final else ())],
            percent=percent,
            timeline=self.timeline,
            journal=list(self._journal),
        )

    def _paint(self) -> None:
        self._screen.paint(self.shown())
        self._painted_at = time.monotonic()


async def watch(run: Run, section: str, start: Start) -> tuple[LaunchStatus, LaunchPanel]:
    """Watch a start to its end: ready, crashed, failed, or the time is up."""
    panel = LaunchPanel(run, section)
    parameters = run.parameters
    updates = iterate(
        lambda: watch_launch(
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
    )
    async for update in updates:
        panel.take(update)
    assert panel.status is not None
    return panel.status, panel


def _last_state(message: str) -> str:
    """What a terminal would show of a message: of a progress bar, its last state."""
    prefix, _, rest = message.rstrip().partition("\r")
    return prefix + rest.rpartition("\r")[2] if rest else prefix


def _signals(status: LaunchStatus) -> list[tuple[str, str]]:
    health = "closed" if status.health_status_code is None else str(status.health_status_code)
    rows = [
        ("systemd", f"{status.active_state} ({status.sub_state})" if status.active_state else "not asked yet"),
        ("/health", health),
        *([("answer", words)] if (words := answer_words(status.answer)) else []),
        ("phase", status.waiting_words or _phase(status)),
        ("restarts", str(status.n_restarts)),
        ("invocation", status.invocation_id or "-"),
        ("elapsed", f"{status.elapsed_s:.1f} s"),
        *([("estimate", f"ready in about {status.eta_s:.0f} s")] if status.eta_s else []),
        *([("moves", status.movement.words)] if status.movement.words and not status.state.is_final else []),
        *(("note", note) for note in (*status.notes, status.slow_words) if note),
    ]
    return rows + [(f"GPU {gpu.index}", _memory(gpu)) for gpu in status.gpus if gpu.memory_used_bytes]


def figure_rows(figures: EngineFigures) -> list[tuple[str, str]]:
    """What the engine printed of itself, for reading; only what was printed.

    >>> figure_rows(EngineFigures(version="0.32.0", kv_cache_tokens=65536, max_concurrency=64.0))
    [('engine', 'vLLM 0.32.0'), ('KV cache', '65,536 tokens, 64.0 requests of max_model_len at once')]
    """
    kv_cache = (
        figures.available_kv_cache_bytes and f"{figures.available_kv_cache_bytes / GIB:.2f} GiB",
        figures.kv_cache_tokens and f"{figures.kv_cache_tokens:,} tokens",
        figures.max_concurrency and f"{figures.max_concurrency:.1f} requests of max_model_len at once",
    )
    rows = [
        ("engine", f"vLLM {figures.version}" if figures.version else ""),
        ("weights", f"{figures.weights_bytes / GIB:.2f} GiB" if figures.weights_bytes else ""),
        ("KV cache", ", ".join(words for words in kv_cache if words)),
        ("CUDA graphs", f"{figures.cuda_graphs_bytes / GIB:.2f} GiB" if figures.cuda_graphs_bytes else ""),
    ]
    return [row for row in rows if row[1]]


def _phase(status: LaunchStatus) -> str:
    if status.phase is None:
        return "-"
    return status.phase.title if status.percent is None else f"{status.phase.title} {status.percent} %"


def _memory(gpu: Gpu) -> str:
    return f"{gpu.memory_used_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB"
