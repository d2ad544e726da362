"""A rehearsal daemon: the child process that practice hosts live in, from its ready line to its end."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from opslib.errors import CouldNotFindOut

ALIAS = "rehearsal"
_CLOSE_TIMEOUT_S = 10.0
_PARENT_CHECK_S = 0.5


class Daemon:
    """The running child process; it ends with `close`, or with the process that started it."""

    def __init__(self, process: "subprocess.Popen[bytes]", close_timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        self.process = process
        self._close_timeout_s = close_timeout_s  # killed before its end, it leaves its directory behind
        self._lock = threading.Lock()

    def close(self) -> None:
        """End it with everything that runs on its hosts; safe to call twice."""
        with self._lock:
            if self.process.stdin and not self.process.stdin.closed:
                self.process.stdin.close()
            try:
                self.process.wait(self._close_timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()


def start_daemon(
    module: str, arguments: Sequence[str], *, timeout_s: float, close_timeout_s: float = _CLOSE_TIMEOUT_S
) -> tuple[Daemon, Any]:
    """Start `python -m module` and wait for its ready line, one JSON document; raises CouldNotFindOut without one."""
    argv = [sys.executable, "-m", module, *arguments]
    # A session of its own: an interrupt (of a terminal, of a kernel) is for the runbook, not for its host.
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    daemon = Daemon(process, close_timeout_s)
    try:
        line = process.stdout.readline() if process.stdout else b""
    except BaseException:  # an interrupt: it ends in order, and takes its directory with it
        daemon.close()
        raise
    finally:
        timer.cancel()
    if not line:
        process.kill()
        raise CouldNotFindOut(f"The rehearsal host did not start (exit status {process.wait()}).", host=ALIAS)
    return daemon, json.loads(line)


def stop_signals() -> asyncio.Event:
    """Set by SIGTERM, SIGINT and SIGHUP: the daemon is to end."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def say_ready(document: object) -> None:
    """Write the ready line."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def until_stopped(stop: asyncio.Event) -> None:
    """Wait for a signal, for the end of standard input, or for the end of the process that started this one."""
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(0, 4096):
            stop.set()

    async def watch_parent() -> None:  # PR_SET_PDEATHSIG would tell of the thread that started us, not of its process
        parent = os.getppid()
        while os.getppid() == parent:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(_PARENT_CHECK_S)
        stop.set()

    watching = asyncio.ensure_future(watch_parent())
    with contextlib.suppress(PermissionError):  # standard input is a file: only signals stop the host then
        loop.add_reader(0, on_input)
    await stop.wait()
    watching.cancel()
    with contextlib.suppress(OSError):
        loop.remove_reader(0)
