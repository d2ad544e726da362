"""The frame around each section of a runbook: gate, time, errors, record, events."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from opslib.app.continuing import add_next
from opslib.app.run import Run, SectionResult
from opslib.domain.actions import Action, frozen_by
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, DryRunEnds, OpslibError
from opslib.views.panels import answer_panel, error_panel, skipped_panel
from opslib.views.shown import Shown

INTERRUPTED = "interrupted: what was begun may go on there; run this cell again to ask again"
TURN_EVERY_S = 0.2
Answer = tuple[SectionResult, Shown]
Cell = Callable[[Run], Shown | None]
WaitingCell = Callable[[Run], Awaitable[Shown | None]]


def section(name: str, *, changes: bool = False) -> Callable[[Callable[[Run], Answer]], Cell]:
    """Make a function a section called `name`: skipped after a stop, its errors shown and recorded, never raised.

    One that `changes` the host is frozen once it has succeeded: run again in the same record, it refuses.
    """

    def decorate(body: Callable[[Run], Answer]) -> Cell:
        @functools.wraps(body)
        def run_section(run: Run) -> Shown | None:
            with _framed(run, name, changes=changes) as frame:
                if frame.is_open:
                    frame.close(body(run))
            return frame.answer

        return run_section

    return decorate


def waiting_section(name: str, *, changes: bool = False) -> Callable[[Callable[[Run], Awaitable[Answer]]], WaitingCell]:
    """The same for a section that waits: its cell awaits it, so that buttons work meanwhile."""

    def decorate(body: Callable[[Run], Awaitable[Answer]]) -> WaitingCell:
        @functools.wraps(body)
        async def run_section(run: Run) -> Shown | None:
            with _framed(run, name, changes=changes) as frame:
                if frame.is_open:
                    async with _turning_loop():
                        frame.close(await body(run))
            return frame.answer

        return run_section

    return decorate


@asynccontextmanager
async def _turning_loop() -> AsyncIterator[None]:
    """Let the event loop turn now and then: ipykernel (7.4) cancels an interrupted cell only at its next turn."""

    async def turn() -> None:
        while True:  # noqa: ASYNC110 - to turn the loop is the purpose
            await asyncio.sleep(TURN_EVERY_S)

    turning = asyncio.ensure_future(turn())
    try:
        yield
    finally:
        turning.cancel()


class _Frame:
    """One execution of a section: what it showed, and its entry in the record."""

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.started_at = datetime.now(UTC)
        self.start = time.monotonic()
        # A section that is run again after it stopped the run (the cause is mended) opens the gate again.
        self.is_open = run.stopped_by in (None, name)
        self.shown = Shown.nothing()

    @property
    def answer(self) -> Shown | None:
        """What the cell ends with: nothing at all where the section has displayed its final state itself."""
        return self.shown if self.shown.text else None

    def close(self, answer: Answer) -> None:
        result, self.shown = answer
        self.run.keep(self.name, result, started_at=self.started_at, duration_s=time.monotonic() - self.start)
        self.run.tell("section-ended", result.summary, section=self.name, state=result.state)
        does_stop = (
            result.is_dry_end or result.exit_code is not None or (result.state is State.CRITICAL and result.is_final)
        )
        self.run.stopped_by = self.name if does_stop else None
        if does_stop:
            self.shown = add_next(self.run, self.name, result, self.shown)

    def fail(self, error: OpslibError) -> None:
        if isinstance(error, DryRunEnds):
            ended = SectionResult(state=State.OK, summary=error.message, is_dry_end=True)
            self.close((ended, answer_panel(self.run.alias, ended.state, ended.summary)))
            return
        error.host = error.host or self.run.alias
        result = SectionResult(state=State.UNKNOWN, summary=str(error), exit_code=error.exit_code)
        self.close((result, error_panel(self.run.alias, error)))

    def interrupt(self) -> None:
        """The operator pressed Interrupt: nobody knows the answer, and the host may go on with what was begun."""
        result = SectionResult(state=State.UNKNOWN, summary=INTERRUPTED, exit_code=CouldNotFindOut.exit_code)
        panel = answer_panel(self.run.alias, result.state, result.summary)
        self.close((result, panel))
        self.shown = panel  # the way on is this cell

    def refuse(self, done: Action) -> None:
        """A change that was made stays made; its answer in the record stays as it is."""
        self.is_open = False
        name, when = self.name, f"{done.at:%Y-%m-%d %H:%M:%S} UTC"
        summary = f"{name} was not run again: it succeeded in this record at {when}, run by {done.user} ({done.by})"
        self.run.act(name, "refused", summary)
        notes = [f'To run it once more: run.unfreeze("{name}"), then this cell. The record will say so.']
        self.shown = answer_panel(self.run.alias, State.WARNING, summary, notes=notes)

    def skip(self) -> None:
        stopper = self.run.stopped_by or ""
        self.run.tell("section-skipped", f"not run: stopped at {stopper}", section=self.name)
        self.shown = skipped_panel(self.name, stopper, self.run.results[stopper].summary)


@contextmanager
def _framed(run: Run, name: str, *, changes: bool) -> Iterator[_Frame]:
    frame = _Frame(run, name)
    frozen = frozen_by(run.record.actions, name) if changes else None
    if not frame.is_open or frozen:
        frame.refuse(frozen) if frozen else frame.skip()
        yield frame
        return
    run.tell("section-started", name, section=name)
    try:
        yield frame
    except OpslibError as error:
        frame.fail(error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        if run.is_headless:  # whoever stopped the run writes its end
            run.closing.close()
            raise
        frame.interrupt()
