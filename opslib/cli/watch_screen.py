"""A watch in a terminal: phases with their bars, both health signals, GPU memory, restarts, the journal's tail."""

import re
from collections import deque
from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from opslib.cli.showing import visible
from opslib.domain.engine_log import strip_colours
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.launch_events import JournalSeen
from opslib.domain.launch_phases import PhaseSpan
from opslib.domain.launch_record import LaunchUpdate
from opslib.domain.launch_status import LaunchState, LaunchStatus, answer_words
from opslib.domain.launch_story import LEVELS, level_of

STATE_STYLES = {
    LaunchState.READY: "bold green",
    LaunchState.STARTING: "bold cyan",
    LaunchState.RESTARTING: "bold yellow",
    LaunchState.STALLED: "bold yellow",
    LaunchState.UNREACHABLE: "bold magenta",
    LaunchState.ABORTED: "bold magenta",
}
_BAR_CELLS = 16
_LEAST_LINES = 4  # of the journal, before phases shrink
_LEAST_WIDTH = 72  # for bars
_NO_LIMIT = 1000
_GIB = 2**30


class WatchScreen:
    """Takes updates in and draws the picture as it stands; of the journal what `level` and `search` let through."""

    def __init__(self, title: str, *, level: str = "DEBUG", search: str = "", n_lines: int = 12) -> None:
        self._title = title
        self._level = LEVELS[level]
        self._search = re.compile(search) if search else None
        self._journal: deque[str] = deque(maxlen=n_lines)
        self.status: LaunchStatus | None = None

    def take(self, update: LaunchUpdate) -> str:
        """Take one update in; returns the journal line that is to be shown, "" for none."""
        self.status = update.status
        line = self._shown_line(update.event.entry) if isinstance(update.event, JournalSeen) else ""
        if line:
            self._journal.append(line)
        return line

    def _shown_line(self, entry: JournalEntry) -> str:
        text = strip_colours(entry.message).strip()
        if not text or level_of(entry) > self._level or (self._search and not self._search.search(text)):
            return ""
        return visible(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The whole picture; on a terminal no higher than that: phases that are over shrink first, then the journal."""
        status = self.status
        if status is None:
            yield Text(f"{self._title}: connecting …", "dim")
            return
        top: list[RenderableType] = [headline(self._title, status), _signals(status)]
        bottom = [Text(f"! {visible(note)}", "yellow") for note in status.notes]
        if status.slow_words:
            bottom.append(Text(visible(status.slow_words), "yellow"))
        lines = [Text(f"│ {line}", "dim", no_wrap=True, overflow="ellipsis") for line in self._journal]
        room = console.size.height - 1 if console.is_terminal else _NO_LIMIT
        room -= len(console.render_lines(Group(*top, *bottom), options, pad=False))
        has_bars = options.max_width >= _LEAST_WIDTH
        phases = _phases(status, at_most=room - min(len(lines), _LEAST_LINES), has_bars=has_bars)
        room -= phases.row_count
        yield from (*top, phases, *bottom, *lines[-max(room, 1) :])


def headline(title: str, status: LaunchStatus) -> Text:
    """State, elapsed time and reason in one line."""
    style = STATE_STYLES.get(status.state, "bold red")
    words = status.waiting_words or status.reason
    eta = f"  ready in about {status.eta_s:.0f} s" if status.eta_s else ""
    budget = f"  ({status.budget_words})" if status.budget_words else ""
    return Text.assemble(
        (f"{status.state.value}  ", style), visible(f"{title}  {status.elapsed_s:.1f} s  {words}{eta}{budget}")
    )


def _signals(status: LaunchStatus) -> Table:
    health = "closed" if status.health_status_code is None else str(status.health_status_code)
    latency = f" in {status.health_latency_ms:.0f} ms" if status.health_latency_ms is not None else ""
    rows = [
        ("systemd", f"{status.active_state} ({status.sub_state}), pid {status.main_pid}, {status.n_restarts} restarts"),
        ("/health", f"{health}{latency}" + (f", port {status.port}" if status.port else "")),
        ("answer", answer_words(status.answer)),
        ("moves", status.movement.words),
    ]
    if used := [gpu for gpu in status.gpus if gpu.memory_used_bytes]:
        held = ", ".join(f"{gpu.index}: {gpu.memory_used_bytes / _GIB:.1f}" for gpu in used)
        rows.append(("GPUs", f"{held} of {used[0].memory_total_bytes / _GIB:.1f} GiB"))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            table.add_row(Text(name, "dim"), Text(visible(value)))
    return table


def _phases(status: LaunchStatus, *, at_most: int, has_bars: bool) -> Table:
    """One row for each phase; where there is no room for all, the first ones share one."""
    table = Table.grid(padding=(0, 2))
    n_folded = max(0, len(status.phases) - max(at_most, 1) + 1) if len(status.phases) > at_most else 0
    if folded := status.phases[: min(n_folded, len(status.phases) - 1)]:
        duration_s = sum(span.duration_s(status.at) for span in folded)
        seconds = Text(f"{duration_s:.1f} s", justify="right")
        table.add_row(Text("✓", "green"), Text(f"{len(folded)} phases", no_wrap=True), seconds, Text(), Text())
    for span in status.phases[len(folded) :]:
        table.add_row(*_phase_row(span, status.at, is_last=span is status.phases[-1], has_bar=has_bars))
    return table


def _phase_row(span: PhaseSpan, now: datetime, *, is_last: bool, has_bar: bool) -> tuple[Text, ...]:
    percent = span.percent if has_bar else None
    filled = "" if percent is None else "█" * (percent * _BAR_CELLS // 100)
    bar = Text(filled.ljust(_BAR_CELLS, "·") if percent is not None else "", "cyan")
    steps = f"{span.n}/{span.total}" if span.total else ""
    rate = f" {span.rate_per_s:.2f}/s" if span.rate_per_s else ""
    is_done = span.ended_at is not None or not is_last
    return (
        Text("✓" if is_done else "▸", "green" if is_done else "cyan"),
        Text(span.title, no_wrap=True, overflow="ellipsis"),
        Text(f"{span.duration_s(now):.1f} s", justify="right"),
        bar,
        Text(steps + rate, "dim", no_wrap=True),
    )
