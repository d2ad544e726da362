"""What an operator can do while a launch is watched: choose and keep journal lines, stop the unit, watch no more."""

import asyncio
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Any

from opslib.app.run import Run
from opslib.app.screen import Live, Screen
from opslib.domain.launch_story import LEVELS
from opslib.errors import OpslibError
from opslib.records.watch_file import read_watch_file
from opslib.views.shown import Shown
from opslib.views.theme import note
from opslib.workflow.lifecycle import plan, stop

_ASKED = "Stop unit, Abort watching and Keep last journal are buttons here while the launch is watched."
_STOP_IT, _LET_IT = "Yes, stop it now", "No, let it run"
_NONE_PRESSED = "No button was pressed during this watch."
_KEPT_FIELDS = ("realtime_at", "identifier", "pid", "message")


class LaunchControls:
    """Buttons under a launch's panel while its cell waits; what they did stays in the file as sentences.

    `aborted` is settled when the operator wants to watch no more. Headless there are none.
    """

    def __init__(self, run: Run, section: str, *, on_choose: Callable[..., None]) -> None:
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._section = section
        self._on_choose = on_choose
        self._loop = asyncio.get_running_loop()
        self._screen = Screen()
        self._widget: Any = None
        self._buttons: list[Any] = []
        self._asked: list[Any] = []  # the answers to a question that is open
        self._chosen = ("DEBUG", "")
        self._told: list[str] = []
        self._works: list[asyncio.Task[None]] = []

    def show(self) -> None:
        """Show them, once."""
        if self._widget is not None or self._run.is_headless:
            return
        from ipywidgets import HTML, Button, HBox, VBox  # noqa: PLC0415 - only where somebody looks

        acts = (
            ("Stop unit", self._stop, "danger"),
            ("Abort watching", self._abort, ""),
            ("Keep last journal", self._keep, ""),
        )
        for name, act, style in acts:
            button = Button(description=name, button_style=style)
            button.on_click(self._on_loop(act, button))
            self._buttons.append(button)
        self._says, self._row = HTML(), HBox(layout={"flex_flow": "row wrap"})
        self._fill_row("DEBUG", "")
        self._widget = VBox([self._row, self._says])
        self._screen.paint(Live(self._widget, _ASKED))

    def _fill_row(self, level: str, search: str) -> None:
        """The buttons, and fields that show this choice.

        New fields after each change: while a cell waits ipykernel 7.4 tells of no idle after a widget's message, so
        that ipywidgets 8.1 holds back every change of a field but its first.
        """
        from ipywidgets import Dropdown, Text  # noqa: PLC0415 - only where somebody looks

        chosen = Dropdown(options=list(LEVELS), value=level, description="Journal", layout={"width": "210px"})
        words = Text(search, placeholder="search it: words, Enter", continuous_update=False, layout={"width": "200px"})

        def change(_: Any) -> None:
            self._loop.call_soon_threadsafe(self._choose, chosen.value, words.value)

        chosen.observe(change, names="value")
        words.observe(change, names="value")
        self._chosen = (level, search)
        self._row.children = (*self._buttons, *self._asked, chosen, words)

    async def close(self) -> None:
        """Wait for what was begun, and leave in place of the buttons what they did."""
        if self._works:
            await asyncio.gather(*self._works)
        if self._widget is not None:
            told = self._told or [_NONE_PRESSED]
            self._screen.paint(Shown("".join(map(note, told)), "\n".join(told)))
            self._widget.close()

    def _on_loop(self, act: Callable[[Any], None], button: Any) -> Callable[[Any], None]:
        """The same from whichever thread JupyterLab calls."""

        def pressed(_: Any) -> None:
            self._loop.call_soon_threadsafe(act, button)

        return pressed

    def _choose(self, level: str, search: str) -> None:
        self._fill_row(level, search)
        self._on_choose(level=level, search=search)

    def _abort(self, button: Any) -> None:
        button.disabled = True
        if not self.aborted.done():
            self._say("Abort watching: the watch ended, the unit goes on.")
            self.aborted.set_result(None)

    def _stop(self, button: Any) -> None:
        """Say what it would do, and ask."""
        button.disabled = True
        self._works.append(asyncio.ensure_future(self._ask_stop(button)))

    async def _ask_stop(self, stop_button: Any) -> None:
        from ipywidgets import Button  # noqa: PLC0415 - only where somebody looks

        def settle(pressed: Any) -> None:
            is_meant = pressed.description == _STOP_IT
            self._asked = []
            self._fill_row(*self._chosen)
            stop_button.disabled = is_meant
            if is_meant:
                self._say("Stop unit: confirmed.")
                self._works.append(asyncio.ensure_future(self._do("Stop unit", self._stop_unit)))
            else:
                self._say("Stop unit: not meant, the unit goes on.")

        await self._do("Stop unit would", self._stop_words)
        for name, style in ((_STOP_IT, "danger"), (_LET_IT, "")):
            button = Button(description=name, button_style=style)
            button.on_click(self._on_loop(settle, button))
            self._asked.append(button)
        self._fill_row(*self._chosen)

    def _keep(self, _: Any) -> None:
        self._show_words(f"{datetime.now(UTC):%H:%M:%S} UTC Keep last journal: it is being written …")
        self._works.append(asyncio.ensure_future(self._do("Keep last journal", self._keep_journal)))

    async def _do(self, name: str, work: Callable[[], str]) -> None:
        """Do it in a thread, and say what came of it."""
        try:
            came = await asyncio.to_thread(work)
        except OpslibError as error:
            came = str(error)
        self._say(f"{name}: {came}.")

    def _say(self, text: str) -> None:
        told = f"{datetime.now(UTC):%H:%M:%S} UTC {text}"
        self._told.append(told)
        self._run.tell("note", text, section=self._section)
        self._show_words()

    def _show_words(self, *passing: str) -> None:
        """What was told last, and what is told for the moment only."""
        if self._widget is not None:
            self._says.value = "".join(f"<div>{escape(line)}</div>" for line in (*self._told[-4:], *passing))

    def _stop_words(self) -> str:
        planned = plan(self._run.host, self._run.parameters.unit, "stop")
        commands = [f" (`{shlex.join(step.command)}`)" if step.command else "" for step in planned.steps]
        steps = [step.title + command for step, command in zip(planned.steps, commands, strict=True)]
        return f"on {self._run.host.settings.alias} {', then '.join(steps)}" if steps else "do nothing: it does not run"

    def _stop_unit(self) -> str:
        return stop(self._run.host, self._run.parameters.unit, tell=lambda _: None).summary

    def _keep_journal(self) -> str:
        path = self._run.folder.path / f"watch-{self._section}.jsonl"
        lines = [_line(document["entry"]) for document in read_watch_file(path) if document.get("event") == "journal"]
        name = f"journal-{self._section}-{datetime.now(UTC):%H%M%S}.txt"
        kept = self._run.folder.add_evidence(name, "".join(lines).encode("utf-8", "replace"))
        n_entries = "1 entry is" if len(lines) == 1 else f"{len(lines)} entries are"
        return f"{n_entries} in {kept.relative_to(self._run.folder.path)}"


def _line(entry: dict[str, Any]) -> str:
    at, identifier, pid, message = (entry.get(name, "") for name in _KEPT_FIELDS)
    return f"{at} {identifier}[{pid}]: {message}\n"
