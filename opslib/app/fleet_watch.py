"""One unit on many hosts watched at once: a thread and a connection each, the updates in one stream."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from opslib.app.unit_watch import watch_unit
from opslib.domain.launch_record import LaunchUpdate
from opslib.errors import OpslibError

_QUEUED = 10_000  # updates that wait for a slow screen; then the hosts' pipes do
_LOOK_S = 0.5
_PATIENCE_S = 6.0  # three ticks of a program on a host


class HostUpdate(NamedTuple):
    """What is new about the unit on one host; `error` where that host's watch has ended with one."""

    host: str
    update: LaunchUpdate | None = None
    error: OpslibError | None = None


def watch_hosts(
    hosts: Sequence[str],
    unit: str,
    *,
    port: int = 8000,
    timeout_s: float | None = None,
    has_gpus: bool = True,
    goes_on: bool = False,
    tick_s: float = _LOOK_S,
) -> Iterator[HostUpdate | None]:
    """The updates of all hosts as they come, None where nothing came for `tick_s`; ends when each host's watch has.

    A host that can't be watched is told once, with its error; the others go on. Closed early, all watches end, and the
    units go on.
    """
    stop = threading.Event()
    updates: queue.Queue[HostUpdate | None] = queue.Queue(_QUEUED)

    def watch(host: str) -> None:
        try:
            _watch_one(
                host,
                stop,
                updates,
                lambda: watch_unit(host, unit, port=port, timeout_s=timeout_s, has_gpus=has_gpus, goes_on=goes_on),
            )
        finally:
            updates.put(None)

    for host in dict.fromkeys(hosts):
        threading.Thread(target=watch, args=(host,), name=f"watch-{host}", daemon=True).start()
    n_left = len(dict.fromkeys(hosts))
    try:
        while n_left:
            try:
                update = updates.get(timeout=tick_s)
            except queue.Empty:
                yield None
                continue
            if update is None:
                n_left -= 1
            else:
                yield update
    finally:
        stop.set()
        _drain(updates, n_left)


def _watch_one(
    host: str,
    stop: threading.Event,
    updates: "queue.Queue[HostUpdate | None]",
    begin: Callable[[], Iterator[LaunchUpdate]],
) -> None:
    try:
        with closing(begin()) as watched:  # type: ignore[type-var]
            for update in watched:
                if stop.is_set():
                    return
                updates.put(HostUpdate(host, update))
    except OpslibError as error:
        updates.put(HostUpdate(host, error=error))


def _drain(updates: "queue.Queue[HostUpdate | None]", n_left: int) -> None:
    """Let the threads end: they may wait for room; one that connects to nobody is left behind."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while n_left and (left_s := give_up_at - time.monotonic()) > 0:
        with suppress(queue.Empty):
            n_left -= updates.get(timeout=left_s) is None
