"""Many hosts asked at once: all are connected to side by side, and a bounded number is asked at a time."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeVar

from opslib.app.binding import open_bound_host
from opslib.domain.host import Host
from opslib.errors import OpslibError

AT_ONCE = 32  # asked at a time; what a host is sent, and what it answers, lies in this process's memory meanwhile
_MAX_THREADS = 256
_PRACTICE_AT_ONCE = 3 * (os.cpu_count() or 1)  # practice hosts share this machine's processors


class Unasked(NamedTuple):
    """A host that could not be asked: why, and when that was tried."""

    alias: str
    error: OpslibError
    began_at: datetime
    ended_at: datetime


Answer = TypeVar("Answer")


def ask_hosts(
    aliases: Sequence[str], ask: Callable[[Host], Answer], unasked: Callable[[Unasked], Answer]
) -> tuple[Answer, ...]:
    """The answer of each host, in the order of `aliases`; `unasked` stands in for one that can't be asked.

    Connecting has no bound but that of threads (256): a host that can't be reached holds up no other.
    """
    if not aliases:
        return ()
    turns = _Turns()
    with ThreadPoolExecutor(max_workers=min(_MAX_THREADS, len(aliases)), thread_name_prefix="ask") as pool:
        return tuple(pool.map(partial(_ask, ask=ask, unasked=unasked, turns=turns), aliases))


class _Turns:
    """Who may be asked now."""

    def __init__(self) -> None:
        self._real = threading.BoundedSemaphore(AT_ONCE)
        self._practice = threading.BoundedSemaphore(_PRACTICE_AT_ONCE)

    def of(self, host: Host) -> AbstractContextManager[bool]:
        return self._practice if host.settings.is_rehearsal else self._real


def _ask(alias: str, *, ask: Callable[[Host], Answer], unasked: Callable[[Unasked], Answer], turns: _Turns) -> Answer:
    began_at = datetime.now(UTC)
    try:
        host = open_bound_host(alias)
        try:
            host.connect()
            with turns.of(host):
                return ask(host)
        finally:
            host.close()
    except OpslibError as error:
        return unasked(Unasked(alias, error, began_at, datetime.now(UTC)))
