"""One unit on many hosts in one table: a row each, drawn anew as hosts speak."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opslib.app.fleet_watch import HostUpdate, watch_hosts
from opslib.cli.showing import show, visible
from opslib.cli.watch_screen import STATE_STYLES
from opslib.domain.launch_status import LaunchState, LaunchStatus
from opslib.domain.states import State, worst

_FRAMES_PER_S = 2
_WORDS = 44  # characters of a row's last cell


def state_at_end(status: LaunchStatus) -> State:
    """Where a watch stood at its end: a warning while the unit is still starting, else as the launch is judged."""
    return State.WARNING if status.state is LaunchState.STARTING else status.judgement


class HostsTable:
    """Takes updates in, and draws a row for each host as it stands; the host's name, state, phase, health, words."""

    def __init__(self, hosts: Sequence[str], unit: str) -> None:
        self._unit = unit
        self.known: dict[str, LaunchStatus | None] = dict.fromkeys(hosts)
        self.errors: dict[str, str] = {}

    def take(self, news: HostUpdate) -> list[str]:
        """Take one update in; returns what changed in words, for where there is no terminal."""
        if news.error:
            self.errors[news.host] = news.error.message
            return [f"{news.host}: {news.error.message}"]
        assert news.update is not None
        self.known[news.host] = news.update.status
        told = [change for change in news.update.changes if change.text and change.what not in {"invocation", "note"}]
        return [f"{news.host}: {change.what}: {change.text}" for change in told]

    def state_of(self, host: str) -> State:
        """Whether the unit there is ready, on its way, bad, or not known."""
        status = self.known[host]
        if status is None or host in self.errors:
            return State.UNKNOWN
        return state_at_end(status)

    def __rich__(self) -> Table:
        """The whole picture."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left", title_style="bold")
        table.title, table.expand = f"{self._unit}: {self.summary}", True
        for name in ("host", "state", "for", "phase", "/health", "restarts"):
            table.add_column(name, header_style="dim", no_wrap=True, overflow="ellipsis")
        table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")  # takes what is left, and is cut
        for host, status in self.known.items():
            table.add_row(*self._row(host, status))
        return table

    @property
    def summary(self) -> str:
        """How many hosts are in which state."""
        counts: dict[str, int] = {}
        for host, status in self.known.items():
            word = "not watched" if host in self.errors else status.state.value if status else "connecting"
            counts[word] = counts.get(word, 0) + 1
        return ", ".join(f"{n} {word}" for word, n in sorted(counts.items(), key=lambda row: -row[1]))

    def _row(self, host: str, status: LaunchStatus | None) -> list[Text]:
        if host in self.errors:
            return [Text(visible(text), "magenta") for text in (host, "not watched", "", "", "", "", self.errors[host])]
        if status is None:
            return [Text(host), Text("connecting", "dim")]
        phase = status.phases[-1] if status.phases and status.state is not LaunchState.READY else None
        percent = f" {phase.percent} %" if phase and phase.percent is not None else ""
        health = "closed" if status.health_status_code is None else str(status.health_status_code)
        words = status.waiting_words or status.reason
        return [
            Text(visible(host)),
            Text(status.state.value, STATE_STYLES.get(status.state, "bold red")),
            Text(f"{status.elapsed_s:.0f} s"),
            Text(visible(f"{phase.title}{percent}") if phase else ""),
            Text(health),
            Text(str(status.n_restarts)),
            Text(visible(words[:_WORDS])),
        ]


def watch_many(hosts: Sequence[str], unit: str, *, as_json: bool, **options: Any) -> int:
    """Watch until the unit is ready or bad on every host; the exit code is that of the worst."""
    console = Console(stderr=as_json, highlight=False, markup=False, emoji=False)
    table = HostsTable(hosts, unit)
    is_live = console.is_terminal and not as_json
    live = Live(table, console=console, refresh_per_second=_FRAMES_PER_S) if is_live else nullcontext()
    updates = watch_hosts(hosts, unit, **options)
    try:
        with live, closing(updates):  # type: ignore[type-var]
            for news in updates:
                for line in table.take(news) if news else ():
                    if not is_live:
                        show(line, file=sys.stderr if as_json else sys.stdout)
    except KeyboardInterrupt:
        show("the operator ended the watch; the units go on", file=sys.stderr)
    if as_json:
        show(json.dumps(_document(table, unit), ensure_ascii=False))
    elif not is_live:
        console.print(table)
    return worst(table.state_of(host) for host in hosts).exit_code


def _document(table: HostsTable, unit: str) -> dict[str, Any]:
    hosts = [
        {
            "host": host,
            "state": status.state.value if status else "unknown",
            "reason": table.errors.get(host, status.reason if status else ""),
            "elapsed_s": round(status.elapsed_s, 3) if status else None,
            "n_restarts": status.n_restarts if status else None,
        }
        for host, status in table.known.items()
    ]
    state = worst(table.state_of(host) for host in table.known)
    return {"watched": unit, "state": state.value, "hosts": hosts, "exit_code": state.exit_code}
