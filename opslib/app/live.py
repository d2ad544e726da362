"""Blocking iterators for cells that `await`: the event loop stays free, so buttons work meanwhile."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()
_QUEUED = 1000
_LET_THROUGH_S = 0.02


async def iterate(
    source: Callable[[], Iterator[T]], *, stopped: "asyncio.Future[None] | None" = None
) -> AsyncIterator[T]:
    """The items of the blocking iterator `source()`, each as it comes, until `stopped` is settled.

    Stopped or interrupted, the iterator is closed at its next item.
    """
    line = _Line(asyncio.get_running_loop())
    if stopped is not None:
        stopped.add_done_callback(lambda _: line.end())
    threading.Thread(target=_pump, args=(source, line), name="opslib-live", daemon=True).start()
    let_through_at = 0.0
    try:
        while (item := await line.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]
            if time.monotonic() >= let_through_at:  # a burst lets buttons through
                await asyncio.sleep(0)
                let_through_at = time.monotonic() + _LET_THROUGH_S
    finally:
        line.is_cancelled = True


class _Line:
    """Items on their way from a thread into an event loop, few at a time: a burst waits at its source, not here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_cancelled = False  # nobody reads any more, and the loop may be closed
        self._loop = loop
        self._room = threading.BoundedSemaphore(_QUEUED)
        self._items: deque[object] = deque()
        self._is_ended = False
        self._is_awake = threading.Event()
        self._wake = asyncio.Event()

    def put(self, item: object) -> None:
        """Hand an item over, from the thread; waits for room."""
        while not self._room.acquire(timeout=0.1):
            if self.is_cancelled:
                return
        self._items.append(item)
        if not self._is_awake.is_set() and not self.is_cancelled:
            self._is_awake.set()
            self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Nothing more is wanted, in the loop."""
        self._is_ended = True
        self._wake.set()

    async def get(self) -> object:
        """The next item, in the loop; _END where nothing more is wanted."""
        while not self._items and not self._is_ended:
            self._wake.clear()
            self._is_awake.clear()
            if not self._items:  # else it came meanwhile, and nobody wakes this
                await self._wake.wait()
        if self._is_ended:
            return _END
        item = self._items.popleft()
        self._room.release()
        return item


def _pump(source: Callable[[], Iterator[T]], line: _Line) -> None:
    """Read in a thread of its own; an error is handed over to the awaiting cell."""
    items = source()
    try:
        for item in items:
            line.put(item)
            if line.is_cancelled:
                break
    except BaseException as error:  # noqa: BLE001
        line.put(error)
    else:
        line.put(_END)
    finally:
        close = getattr(items, "close", None)
        if close:
            close()
