"""A rehearsal daemon: the child process that practice hosts live in, from its ready line to its end."""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from opslib.errors import CouldNotFindOut
from opslib.rehearsal.leftovers import PREFIX, hold, sweep

ALIAS = "rehearsal"
_CLOSE_TIMEOUT_S = 10.0
_PARENT_CHECK_S = 0.5
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


@dataclass(frozen=True, kw_only=True)
class DaemonOwner:
    """What stands as long as its daemon does: it ends with `close`, with this process, or with its `with` block."""

    daemon: Daemon

    @property
    def process_id(self) -> int:
        """The one process that everything of it lives in."""
        return self.daemon.process.pid

    def close(self) -> None:
        """End it with everything that runs on it; safe to call twice."""
        self.daemon.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_daemon(
    module: str,
    arguments: Sequence[str],
    *,
    root: Path | None,
    timeout_s: float,
    close_timeout_s: float = _CLOSE_TIMEOUT_S,
) -> tuple[Daemon, Path, Any]:
    """Start `python -m module` and wait for its ready line: the daemon, where it lies, and that line's JSON document.

    Without `root` it lies in a temporary directory, which goes with it. Raises CouldNotFindOut without a ready line.
    """
    temporary = None if root else tempfile.mkdtemp(prefix=f"{PREFIX}rehearsal-")
    base = Path(root or temporary or "").resolve()
    argv = [sys.executable, "-m", module, "--root", str(base), *(["--remove-root"] if temporary else []), *arguments]
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
    return daemon, base, json.loads(line)


def daemon_arguments(module: str) -> argparse.ArgumentParser:
    """The options that every daemon has."""
    parser = argparse.ArgumentParser(prog=module)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--remove-root", action="store_true", help="the root is temporary: leave nothing behind")
    parser.add_argument("--time-factor", type=float, default=1.0)
    return parser


def run_daemon(arguments: argparse.Namespace, serve: Callable[[Path], Coroutine[Any, Any, None]]) -> int:
    """Serve in the root until it ends, and remove a temporary one; sweeps what others that were killed left behind."""
    root: Path = arguments.root
    root.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.remove_root:
            hold(root)
            sweep()
        asyncio.run(_served(serve(root.resolve())))
    finally:
        if arguments.remove_root:
            shutil.rmtree(root, ignore_errors=True)
    return 0


async def _served(serving: Coroutine[Any, Any, None]) -> None:
    """Serve, and take no signal to the loop after that: one that came while the loop closes would be written about."""
    try:
        await serving
    finally:
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.SIG_IGN)  # it ends already, and clears up
        loop.remove_signal_handler(signal.SIGCHLD)


def stop_signals() -> asyncio.Event:
    """Set by SIGTERM, SIGINT and SIGHUP: the daemon is to end."""
    stop = asyncio.Event()
    for number in _STOPPING:
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
