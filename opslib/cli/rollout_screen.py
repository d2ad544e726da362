"""A rollout in a terminal: a table of hosts that moves; elsewhere a line for each step."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opslib.cli.showing import visible
from opslib.cli.story import SteadyConsole
from opslib.domain.rollout import UNDER_WAY, HostStep, RolloutEvent, wave_words, waves
from opslib.domain.rollout_state import HostProgress, RolloutState

STEPS = {  # step -> symbol and style
    HostStep.UNTOUCHED: ("·", "dim"),
    HostStep.WAITING: ("…", "cyan"),
    HostStep.DRAINING: ("…", "cyan"),
    HostStep.RUNNING: ("…", "bold cyan"),
    HostStep.PASSED: ("✓", "green"),
    HostStep.FAILED: ("✗", "bold red"),
    HostStep.UNKNOWN: ("?", "magenta"),
    HostStep.UNDONE: ("↩", "green"),
}
_FRAMES_PER_S = 2
_MOST_ROWS = 40
_STOP_WORDS = ": no other host is begun; those under way come to their end (SIGTERM, Ctrl-C again: in order)"
_PHASES = {"paused": "bold yellow", "stopping": "bold magenta", "ended": "bold", "undone": "bold"}


class RolloutScreen:
    """Takes events in; draws the whole where there is a terminal, else prints what is new."""

    def __init__(self, *, is_quiet_stdout: bool) -> None:
        stream = sys.stderr if is_quiet_stdout else sys.stdout
        self.console = SteadyConsole(
            file=stream, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty()
        )
        self._state: RolloutState | None = None
        self._said: dict[str, tuple[HostStep, str]] = {}
        self._is_live = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """The table stays on the screen while the block lasts, and in its last state after it."""
        if not self.console.is_terminal:
            yield
            return
        self._is_live = True
        with Live(self, console=self.console, refresh_per_second=_FRAMES_PER_S):
            yield
        self._is_live = False

    def take(self, event: RolloutEvent, state: RolloutState) -> None:
        """Take one event in."""
        self._state = state
        if self._is_live and event.kind in ("host", "wave"):
            return
        if event.kind == "host":
            self._print_host(event, state)
        elif event.text and event.kind not in ("ended", "undo-ended"):
            more = _STOP_WORDS if event.kind == "asked" and event.text.startswith("stop") else ""
            self.say(f"{_clock(event)}  {event.text}{more}", "dim" if event.kind == "note" else "bold")

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line."""
        self.console.print(Text(visible(text), style))

    def _print_host(self, event: RolloutEvent, state: RolloutState) -> None:
        progress = state.host(event.host)
        now = (progress.step, progress.text)
        if self._said.get(event.host) == now:
            return
        is_new = event.step is not None and self._said.get(event.host, (None, ""))[0] is not progress.step
        self._said[event.host] = now
        width = max(len(each.host) for each in state.hosts)
        line = Text.assemble(
            (f"{_clock(event)}  ", "dim"), (f"{event.host:<{width}}  ", "bold"), step_text(progress.step)
        )
        line.append(f"  {visible(progress.text)}", "" if is_new else "dim")
        self.console.print(line)

    def __rich__(self) -> RenderableType:
        """The whole picture."""
        if self._state is None:
            return Text("…", "dim")
        return Group(headline(self._state), host_table(self._state))


def headline(state: RolloutState) -> Text:
    """What is rolled out, how many hosts stand where, and whether it goes on."""
    counts = [f"{len(found)} {step}" for step in HostStep if (found := state.at(step))]
    line = Text.assemble((f"{state.plan.runbook} over {len(state.hosts)} hosts", "bold"), f"  {', '.join(counts)}")
    if state.phase in _PHASES:
        line.append(f"  {state.phase}", _PHASES[state.phase])
    if state.phase == "stopping":
        line.append("  waiting for the hosts under way; Ctrl-C again ends them in order", "magenta")
    return line


def host_table(state: RolloutState) -> Table:
    """One row per host: its wave, its step, what it does or how it ended, and how long that has taken."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, expand=True)
    for name, style in (("wave", "dim"), ("host", "bold"), ("step", "")):
        table.add_column(name, style=style, no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("s", justify="right", style="dim", no_wrap=True)
    n_waves = len(waves(state.plan))
    for progress in _shown(state):
        cells = (wave_words(progress.wave, n_waves), progress.host)
        table.add_row(*cells, step_text(progress.step), Text(visible(_line(progress))), _seconds(progress))
    return table


def _shown(state: RolloutState) -> tuple[HostProgress, ...]:
    """All hosts; of many, those that something happens to come first."""
    if len(state.hosts) <= _MOST_ROWS:
        return state.hosts
    quiet = (HostStep.UNTOUCHED, HostStep.PASSED)
    return tuple(sorted(state.hosts, key=lambda progress: progress.step in quiet))[:_MOST_ROWS]


def step_text(step: HostStep) -> Text:
    """A step with its symbol, nine columns wide."""
    symbol, style = STEPS[step]
    return Text(f"{symbol} {step.value:<9}", style)


def _line(progress: HostProgress) -> str:
    return " ".join(progress.text.split())


def _seconds(progress: HostProgress) -> str:
    if progress.begun_at is None:
        return ""
    end = datetime.now(UTC) if progress.step in UNDER_WAY else progress.since_at or progress.begun_at
    return f"{max(0.0, (end - progress.begun_at).total_seconds()):.0f}"


def _clock(event: RolloutEvent) -> str:
    return event.at.strftime("%H:%M:%S")
