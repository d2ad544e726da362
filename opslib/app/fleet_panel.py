"""A rollout on the screen while its cell waits: the matrix, repainted, and buttons that ask it to wait or to stop."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from opslib.app.fleet_matrix import FleetMatrix
from opslib.app.rollout import RolloutEnd
from opslib.app.run import Run
from opslib.app.screen import Live, Screen
from opslib.domain.rollout import RolloutEvent
from opslib.domain.rollout_state import RolloutState
from opslib.errors import OpslibError
from opslib.records.rollout import Asked, ask
from opslib.views.shown import Shown
from opslib.views.theme import note

OnChange = Callable[[RolloutEvent, RolloutState], None]
OnFolder = Callable[[Path], None]
Carry = Callable[[OnFolder, OnChange], RolloutEnd]

_REFRESH_S = 0.5
_ACTS: tuple[tuple[str, Asked, str], ...] = (
    ("Pause", "pause", ""),
    ("Resume", "resume", ""),
    ("Stop", "stop", "danger"),
)
_ASKED = "Pause, Resume and Stop are buttons here while the rollout goes on."
_NONE_PRESSED = "No button was pressed during this rollout."


class FleetPanel:
    """What is shown of one rollout, and what may be asked of it; its last state stays in the file."""

    def __init__(self, run: Run) -> None:
        self.folder: Path | None = None
        self.matrix = FleetMatrix(run.folder.path.parent, run.folder.path if run.is_headless else None)
        self._run = run
        self._state: RolloutState | None = None
        self._screen = Screen()
        self._buttons = FleetButtons(run, self.ask)

    def take_folder(self, path: Path) -> None:
        """Where the rollout keeps its state; told before anything is done."""
        self.folder = path
        self._run.tell("line", f"rollout {path.name}", section="rollout")

    def take(self, event: RolloutEvent, state: RolloutState) -> None:
        """Take one event in, from whichever thread; the next repaint shows it."""
        self._state = state
        if event.kind in ("host", "wave", "asked", "note") and (event.step or event.kind != "host"):
            where = f"{event.host} {event.step}" if event.host else event.kind
            self._run.tell("line", f"{where}: {event.text}", section="rollout")

    def ask(self, asked: Asked) -> str:
        """Ask the rollout, through its folder; what came of it."""
        if self.folder is None:
            return "it has not begun"
        ask(self.folder, asked)
        return "asked; it is heard between two hosts"

    def paint(self) -> None:
        """Show it as it stands."""
        if self._state is not None:
            self._screen.paint(self.matrix.shown(self._state))
            self._buttons.show()

    async def watch(self, carry: Carry) -> RolloutEnd:
        """Carry the rollout out in a thread and show it until its end; interrupted, it is asked to stop first."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[RolloutEnd] = loop.create_future()
        threading.Thread(target=_work, args=(self, carry, ended, loop), name="rollout", daemon=True).start()
        try:
            while not ended.done():
                self.paint()
                await asyncio.wait({ended}, timeout=_REFRESH_S)
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.ask("stop")
            raise
        finally:
            self.paint()
            self._buttons.close()
        return ended.result()


def _work(
    panel: FleetPanel, carry: Carry, ended: "asyncio.Future[RolloutEnd]", loop: asyncio.AbstractEventLoop
) -> None:
    """The rollout in its thread; its end, or what stopped it, is handed over to the cell that waits."""

    def settle(answer: RolloutEnd | BaseException) -> None:
        if ended.done():
            return
        if isinstance(answer, BaseException):
            ended.set_exception(answer)
        else:
            ended.set_result(answer)

    try:
        answer: RolloutEnd | BaseException = carry(panel.take_folder, panel.take)
    except BaseException as error:  # noqa: BLE001
        answer = error
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, answer)


class FleetButtons:
    """Buttons under the matrix while its cell waits; what they did stays in the file as sentences."""

    def __init__(self, run: Run, act: Callable[[Asked], str]) -> None:
        self._run = run
        self._act = act
        self._screen = Screen()
        self._widget: Any = None
        self._told: list[str] = []

    def show(self) -> None:
        """Show them, once; headless there are none."""
        if self._widget is not None or self._run.is_headless:
            return
        from ipywidgets import HTML, Button, HBox, VBox  # noqa: PLC0415 - only where somebody looks

        loop, buttons = asyncio.get_running_loop(), []
        for name, asked, style in _ACTS:
            button = Button(description=name, button_style=style)
            button.on_click(lambda _, name=name, asked=asked: loop.call_soon_threadsafe(self._press, name, asked))
            buttons.append(button)
        self._says = HTML()
        self._widget = VBox([HBox(buttons), self._says])
        self._screen.paint(Live(self._widget, _ASKED))

    def close(self) -> None:
        """Leave in place of the buttons what they did."""
        if self._widget is not None:
            told = self._told or [_NONE_PRESSED]
            self._screen.paint(Shown("".join(map(note, told)), "\n".join(told)))
            self._widget.close()

    def _press(self, name: str, asked: Asked) -> None:
        try:
            came = self._act(asked)
        except OpslibError as error:
            came = str(error)
        self._told.append(f"{datetime.now(UTC):%H:%M:%S} UTC {name}: {came}.")
        self._run.tell("note", f"{name}: {came}", section="rollout")
        self._says.value = "".join(f"<div>{escape(line)}</div>" for line in self._told[-4:])
