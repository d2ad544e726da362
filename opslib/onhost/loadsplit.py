"""A level shared among several processes, for a load that one can't measure."""

import json
import os
import warnings
from typing import IO, Any, Callable, Dict, Iterator, List

from opslib.onhost.loadshape import MAX_CPU_SHARE

AIMED_CPU_SHARE = 0.40
MAX_PROCESSES = 8


def split(shape: Dict[str, Any], count: int) -> List[Dict[str, Any]]:
    """What each of `count` processes does of a level: every n-th request that is due, or its part of the streams.

    >>> split({"concurrency": 5, "n_requests": 10}, 2)
    [{'concurrency': 3, 'n_requests': 5}, {'concurrency': 2, 'n_requests': 5}]
    """
    shares = []
    for number in range(count):
        share = dict(shape)
        if shape.get("due") is not None:
            share["due"] = shape["due"][number::count]
        else:
            share["concurrency"] = _part(shape["concurrency"], number, count)
            if shape.get("n_requests") is not None:
                share["n_requests"] = _part(shape["n_requests"], number, count)
        shares.append(share)
    return shares


def processes_needed(n_now: int, cpu_share: float, factor: float, limit: int) -> int:
    """How many processes keep each at `AIMED_CPU_SHARE` when the load grows by `factor`; stays where it is if it may.

    >>> processes_needed(1, 0.25, 2.0, 8), processes_needed(1, 0.5, 2.0, 8), processes_needed(1, 0.5, 2.0, 1)
    (1, 3, 1)
    """
    total = n_now * cpu_share * factor
    if total / n_now <= MAX_CPU_SHARE:
        return n_now
    return max(1, min(limit, -(-int(1000 * total) // int(1000 * AIMED_CPU_SHARE))))


def limit_of(asked: Any) -> int:
    """The most processes that a load may take here: what was asked for, else all cores but one, eight at most."""
    if asked:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_PROCESSES, cores - 1))


class Child:
    """A process that runs `work(out)` and whose lines (JSON) the parent reads."""

    def __init__(self, work: Callable[[IO[str]], None]) -> None:
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that a fork leaves behind: none of them is needed
            self.process_id = os.fork()
        if self.process_id == 0:
            status = 1
            try:
                os.close(read_end)
                with os.fdopen(write_end, "w") as out:
                    work(out)
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        self._pipe = read_end

    def lines(self) -> Iterator[Dict[str, Any]]:
        """The lines as they come, until the process ends; what a killed one left half written is dropped."""
        with os.fdopen(self._pipe) as pipe:
            for line in pipe:
                if line.endswith("\n"):
                    yield json.loads(line)

    def wait(self) -> int:
        """Its exit status; 0 is good."""
        return os.waitpid(self.process_id, 0)[1]


def _part(whole: int, number: int, count: int) -> int:
    return whole // count + (1 if number < whole % count else 0)
