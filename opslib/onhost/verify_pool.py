"""Runs a piece of work on many items in a few forked processes, and hands over what they tell as they go."""

import contextlib
import json
import os
import select
import signal
import struct
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Tuple

Tell = Callable[..., None]
Work = Callable[[int, Tell], None]
NICE = 10


def n_cores() -> int:
    """Cores that this process may use: its affinity, cut by the quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()[:2]
        cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def is_rotating(path: str) -> bool:
    """Whether a disk with heads holds `path`: it is slower for two readers than for one."""
    try:
        device = os.stat(path).st_dev
        disk = os.path.realpath("/sys/dev/block/%d:%d" % (os.major(device), os.minor(device)))
        for folder in (disk, os.path.dirname(disk)):  # a partition's queue is its disk's
            queue = os.path.join(folder, "queue", "rotational")
            if os.path.exists(queue):
                with open(queue, encoding="ascii") as file:
                    return file.read().strip() == "1" and not os.path.basename(folder).startswith(("vd", "xvd"))
    except OSError:
        pass
    return False


def run_pool(n_items: int, n_workers: int, work: Work) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """What `work(number, tell)` tells about the items 0 to n_items - 1, begun in that order; {"done": True} ends each.

    An item whose process died ends with {"done": True, "problem": why}. Closing the iterator ends the processes.
    """
    tasks_read, tasks_write = os.pipe()
    pids, sources = _fork(min(n_workers, n_items), tasks_read, tasks_write, work)
    os.close(tasks_read)
    threading.Thread(target=_feed, args=(tasks_write, n_items), daemon=True).start()
    left = set(range(n_items))
    try:
        for number, told in _read(sources):
            if told.get("done"):
                left.discard(number)
            yield number, told
    finally:
        for pid in pids:
            _end(pid)
    for number in sorted(left):
        yield number, {"done": True, "problem": "the process that read it ended (killed?)"}


def _fork(n_workers: int, tasks_read: int, tasks_write: int, work: Work) -> Tuple[List[int], List[int]]:
    pids = []  # type: List[int]
    sources = []  # type: List[int]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the watching thread only waits
        for _ in range(n_workers):
            said_read, said_write = os.pipe()
            pid = os.fork()
            if pid == 0:
                for descriptor in (*sources, said_read, tasks_write):
                    os.close(descriptor)
                _serve(tasks_read, said_write, work)
            os.close(said_write)
            pids.append(pid)
            sources.append(said_read)
    return pids, sources


def _serve(tasks: int, said: int, work: Work) -> None:
    """A worker's whole life; it never returns, and ends when nobody listens any more."""
    status = 0
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        be_modest()
        while True:
            raw = os.read(tasks, 4)
            if len(raw) < 4:
                break
            number = struct.unpack("<I", raw)[0]

            def tell(number: int = number, **fields: Any) -> None:
                _write(said, json.dumps([number, fields]).encode("ascii") + b"\n")

            try:
                work(number, tell)
                tell(done=True)
            except (ValueError, KeyError, OverflowError, MemoryError, RecursionError) as error:
                tell(done=True, problem="%s: %s" % (type(error).__name__, error))
    except BaseException:
        status = 1
    finally:
        os._exit(status)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _feed(tasks: int, n_items: int) -> None:
    try:
        for number in range(n_items):
            os.write(tasks, struct.pack("<I", number))
    except OSError:
        pass
    finally:
        os.close(tasks)


def _read(sources: List[int]) -> Iterator[Tuple[int, Dict[str, Any]]]:
    rests = dict.fromkeys(sources, b"")
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    try:
        while rests:
            for source, _ in poll.poll():
                chunk = os.read(source, 65536)
                if not chunk:
                    poll.unregister(source)
                    os.close(source)
                    del rests[source]
                    continue
                lines = (rests[source] + chunk).split(b"\n")
                rests[source] = lines.pop()
                for line in lines:
                    number, told = json.loads(line)
                    yield number, told
    finally:
        for source in rests:
            os.close(source)


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)


def be_modest() -> None:
    """Leave processor and disk to those who serve: nice 10 at least, and the lowest best-effort I/O priority."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        import ctypes  # noqa: PLC0415 - absent from minimal Pythons

        number = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)  # ioprio_set(2)
        if number is not None:
            ctypes.CDLL(None).syscall(number, 1, 0, (2 << 13) | 7)  # this process; class best effort, level 7
    except (ImportError, OSError, AttributeError):
        pass
