"""Blocking iterators for cells that `await`: the event loop stays free, so buttons work meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


async def iterate(
    source: Callable[[], Iterator[T]], *, stopped: "asyncio.Future[None] | None" = None
) -> AsyncIterator[T]:
    """The items of the blocking iterator `source()`, each as it comes, until `stopped` is settled.

    Stopped or interrupted, the iterator is closed at its next item.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[object] = asyncio.Queue()
    is_cancelled = threading.Event()

    def put(item: object) -> None:
        if not is_cancelled.is_set():  # else nobody reads it, and the loop may be closed
            loop.call_soon_threadsafe(queue.put_nowait, item)

    if stopped is not None:
        stopped.add_done_callback(lambda _: queue.put_nowait(_END))
    threading.Thread(target=_pump, args=(source, put, is_cancelled), name="opslib-live", daemon=True).start()
    try:
        while (item := await queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]
            await asyncio.sleep(0)  # a burst lets buttons through
    finally:
        is_cancelled.set()


def _pump(source: Callable[[], Iterator[T]], put: Callable[[object], None], is_cancelled: threading.Event) -> None:
    """Read in a thread of its own; an error is handed over to the awaiting cell."""
    items = source()
    try:
        for item in items:
            put(item)
            if is_cancelled.is_set():
                break
    except BaseException as error:  # noqa: BLE001
        put(error)
    else:
        put(_END)
    finally:
        close = getattr(items, "close", None)
        if close:
            close()
