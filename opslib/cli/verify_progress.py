"""How far a verification is, in a terminal: a bar with files, GB, GB/s and the time left; plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from opslib.cli.showing import show, visible

EVERY_S = 5.0
STAGES = {"headers": "reading headers", "reconnect": "the link was lost: connecting again", "digest": "hashing"}


@contextmanager
def told() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that shows each progress event on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Plain()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar)


def figures(event: Mapping[str, Any]) -> str:
    """The numbers of a progress event.

    >>> figures({"files": 3, "n_files": 125, "bytes": 5e9, "total_bytes": 215e9, "bytes_per_s": 1.5e9, "eta_s": 140})
    '3 of 125 files, 5.0 of 215.0 GB, 1.50 GB/s, 2:20 left'
    """
    files = f"{event['files']} of {event['n_files']} files"
    size = f"{event['bytes'] / 1e9:.1f} of {event['total_bytes'] / 1e9:.1f} GB"
    rate = f", {event['bytes_per_s'] / 1e9:.2f} GB/s" if event.get("bytes_per_s") else ""
    eta_s = event.get("eta_s")
    left = f", {int(eta_s) // 60}:{int(eta_s) % 60:02} left" if eta_s else ""
    return f"{files}, {size}{rate}{left}"


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        stage = str(event["stage"])
        if stage not in self.tasks:
            self.tasks[stage] = self.bar.add_task(visible(STAGES.get(stage, stage)), total=None, figures="")
        shown = figures(event) if event["n_files"] else ""
        total = event["total_bytes"] or None
        self.bar.update(self.tasks[stage], completed=event["bytes"], total=total, figures=shown)


class _Plain:
    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        if time.monotonic() - self.said_at >= EVERY_S or event["stage"] == "reconnect":
            self.said_at = time.monotonic()
            stage = str(event["stage"])
            shown = f": {figures(event)}" if event["n_files"] else ""
            show(f"{STAGES.get(stage, stage)}{shown}", file=sys.stderr)
