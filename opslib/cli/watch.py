"""`opslib watch`: what a unit is doing, live in the terminal, or played again from a record."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from opslib.app.catalogue import default_runs_dir
from opslib.app.survey import chosen_aliases
from opslib.app.unit_watch import replay_unit, watch_unit
from opslib.cli.numbers import Number
from opslib.cli.showing import show
from opslib.cli.watch_hosts import state_at_end, watch_many
from opslib.cli.watch_screen import WatchScreen, headline
from opslib.domain.launch_record import LaunchUpdate
from opslib.domain.launch_status import ABORT_WORDS, LaunchState, LaunchStatus
from opslib.domain.launch_story import LEVELS
from opslib.errors import BadParameter
from opslib.records.find import find_record

_FRAMES_PER_S = 4
_AT_ONCE = frozenset({"exit", "crash", "state"})  # no frame is waited for


@click.command("watch")
@click.argument("host", required=False)
@click.argument("unit", required=False)
@click.option("--hosts", "many", multiple=True, metavar="LABEL|ALIAS", help="UNIT on all of these, a row each [all].")
@click.option("--replay", type=click.Path(path_type=Path), help="Play a record (last, ...), or an event file, again.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Where no engine says it.")
@click.option("--timeout", "timeout_s", type=Number(1), help="Give up after so many seconds [never].")
@click.option("--stall", "stall_s", type=Number(1), default=900.0, show_default=True, help="Stalled after.")
@click.option("--follow", is_flag=True, help="Go on watching once it is ready.")
@click.option("--no-gpus", is_flag=True, help="Ask no nvidia-smi.")
@click.option("--events", type=click.Path(dir_okay=False, path_type=Path), help="Keep all events in this file.")
@click.option(
    "--level", type=click.Choice(list(LEVELS)), default="DEBUG", help="Journal lines of this level and worse."
)
@click.option("--grep", "search", default="", help="Journal lines that match this regular expression.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output at the end.")
def watch_command(
    host: str | None, unit: str | None, many: tuple[str, ...], replay: Path | None, **options: Any
) -> int:
    """Watch UNIT on HOST: phases, progress, both health signals, GPU memory, restarts, its journal.

    With --hosts LABEL the one name is UNIT, watched on many hosts in one table. Changes nothing. Exit code 0: ready;
    1: still starting; 2: crashed, failed or not ready in time; 3: not known.
    """
    if many:
        return _watch_many(many, host, unit, replay, options)
    if replay is None and not (host and unit):
        raise BadParameter("HOST and UNIT are missing", hint="give both, or --replay RECORD")
    if replay is not None and not replay.exists():
        replay = find_record(default_runs_dir(), str(replay))
    as_json = bool(options.pop("as_json"))
    console = Console(stderr=as_json, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal  # what is piped on keeps its lines whole
    title = str(replay) if replay else f"{host} {unit}"
    try:
        screen = WatchScreen(title, level=options.pop("level"), search=options.pop("search"))
    except re.error as error:
        raise BadParameter(f"--grep is no regular expression: {error}") from error
    updates = _updates(console, host, unit, replay, options)
    is_live = console.is_terminal and not as_json and replay is None
    _tell(console, screen, updates, is_live=is_live)
    status = screen.status
    assert status is not None
    if as_json:
        show(json.dumps(_document(title, status), ensure_ascii=False))
    elif not is_live:
        console.print(screen)
    return exit_code(status)


def _watch_many(
    many: tuple[str, ...], host: str | None, unit: str | None, replay: Path | None, options: dict[str, Any]
) -> int:
    """Watch one unit, which stands where a single HOST would, on several hosts."""
    if replay or options["events"] or options["search"] or unit or not host:
        raise BadParameter("--hosts takes one UNIT, and neither --replay, --events nor --grep")
    words = tuple(part for word in many for part in word.split(",") if part)
    return watch_many(
        chosen_aliases(words),
        host,
        as_json=bool(options["as_json"]),
        port=options["port"],
        timeout_s=options["timeout_s"],
        has_gpus=not options["no_gpus"],
        goes_on=options["follow"],
    )


def exit_code(status: LaunchStatus) -> int:
    """The exit code that says where a watch stood at its end."""
    return state_at_end(status).exit_code


def _updates(
    console: Console, host: str | None, unit: str | None, replay: Path | None, options: dict[str, Any]
) -> Iterator[LaunchUpdate]:
    if replay is not None:
        return (update for _, update in replay_unit(replay))
    assert host is not None
    assert unit is not None
    return watch_unit(
        host,
        unit,
        port=options["port"],
        timeout_s=options["timeout_s"],
        stall_s=options["stall_s"],
        has_gpus=not options["no_gpus"],
        goes_on=options["follow"],
        events=options["events"],
        on_problem=lambda text: console.print(f"! {text}", style="yellow"),
    )


def _tell(console: Console, screen: WatchScreen, updates: Iterator[LaunchUpdate], *, is_live: bool) -> None:
    """Draw the picture where there is a terminal; elsewhere a line for each change, and the journal."""
    try:
        with Live(screen, console=console, refresh_per_second=_FRAMES_PER_S) if is_live else nullcontext() as live:
            for update in updates:
                line = screen.take(update)
                if live and any(change.what in _AT_ONCE for change in update.changes):
                    live.refresh()
                if not is_live:
                    _print_changes(console, update, line)
    except KeyboardInterrupt:
        if screen.status is None:
            raise
        screen.status = screen.status.model_copy(update={"state": LaunchState.ABORTED, "reason": ABORT_WORDS})
        show(file=sys.stderr)
        console.print(headline("", screen.status))


def _print_changes(console: Console, update: LaunchUpdate, line: str) -> None:
    at = f"{update.status.elapsed_s:8.1f}  "
    if line and console.is_terminal:
        console.print(f"{at}│ {line}", style="dim")
    elif line:  # there may be thousands in a second
        show(f"{at}│ {line}", file=console.file)
    for change in update.changes:
        if change.text and change.what != "invocation":
            console.print(f"{at}{change.what:<10}  {change.text}")


def _document(title: str, status: LaunchStatus) -> dict[str, Any]:
    document = status.model_dump(mode="json", exclude={"gpus", "movement"})
    return {"watched": title, **document, "elapsed_s": round(status.elapsed_s, 3), "exit_code": exit_code(status)}
