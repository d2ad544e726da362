"""A watch in a terminal: phases with their bars, both health signals, GPU memory, restarts, the journal's tail."""

import re
from collections import deque
from datetime import datetime

from rich.console import Group, RenderableType
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
_BAR_CELLS = 24
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

    def __rich__(self) -> RenderableType:
        """The whole picture."""
        status = self.status
        if status is None:
            return Text(f"{self._title}: connecting …", "dim")
        parts: list[RenderableType] = [headline(self._title, status), _signals(status), _phases(status)]
        parts += [Text(f"! {visible(note)}", "yellow") for note in status.notes]
        if status.slow_words:
            parts.append(Text(visible(status.slow_words), "yellow"))
        parts += [Text(f"│ {line}", "dim", no_wrap=True, overflow="ellipsis") for line in self._journal]
        return Group(*parts)


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
    rows += [
        (f"GPU {gpu.index}", f"{gpu.memory_used_bytes / _GIB:.1f} of {gpu.memory_total_bytes / _GIB:.1f} GiB")
        for gpu in status.gpus
        if gpu.memory_used_bytes
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            table.add_row(Text(name, "dim"), Text(visible(value)))
    return table


def _phases(status: LaunchStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    for span in status.phases:
        table.add_row(*_phase_row(span, status.at, is_last=span is status.phases[-1]))
    return table


def _phase_row(span: PhaseSpan, now: datetime, *, is_last: bool) -> tuple[Text, ...]:
    percent = span.percent
    filled = "" if percent is None else "█" * (percent * _BAR_CELLS // 100)
    bar = Text(filled.ljust(_BAR_CELLS, "·") if percent is not None else "", "cyan")
    steps = f"{span.n}/{span.total}" if span.total else ""
    rate = f" {span.rate_per_s:.2f}/s" if span.rate_per_s else ""
    is_done = span.ended_at is not None or not is_last
    return (
        Text("✓" if is_done else "▸", "green" if is_done else "cyan"),
        Text(span.title),
        Text(f"{span.duration_s(now):.1f} s", justify="right"),
        bar,
        Text(steps + rate, "dim"),
    )
