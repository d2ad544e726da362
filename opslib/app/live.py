"""Blocking generators for cells that `await`: the event loop stays free, so buttons work meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator

type Source[T] = Callable[[], Generator[T]]


async def iterate[T](source: Source[T]) -> AsyncIterator[T]:
    """The items of the blocking generator `source()`, each as it comes; an interrupt closes the generator."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[str, T | BaseException | None]] = asyncio.Queue()
    is_cancelled = threading.Event()

    def put(kind: str, item: T | BaseException | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, (kind, item))

    def pump() -> None:
        generator = source()
        try:
            for item in generator:
                put("item", item)
                if is_cancelled.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 - handed over to the awaiting cell
            put("error", error)
        else:
            put("end", None)
        finally:
            generator.close()

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    try:
        while True:
            kind, item = await queue.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(item, BaseException)
                raise item
            yield item  # type: ignore[misc]
    finally:
        is_cancelled.set()

