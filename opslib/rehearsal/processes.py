"""Child processes of the rehearsal host: started, reaped and found again, whoever their parent is by now."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

OnExit: TypeAlias = Callable[[int], None]

CGROUP_VARIABLE = "OPSLIB_CGROUP"  # marks every process of a unit or session, as a control group would
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


class ProcessTable:
    """Starts processes and tells their wait status; orphaned grandchildren are adopted and reaped too."""

    def __init__(self) -> None:
        self._on_exit: dict[int, OnExit] = {}
        self._popen: dict[int, subprocess.Popen[bytes]] = {}
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reap children whenever the kernel says that one ended."""
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        on_exit: OnExit,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
    ) -> int:
        """Start a program in a session of its own and return its process id; OSError when it cannot be executed."""
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=directory,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._popen[process.pid] = process
        self._on_exit[process.pid] = on_exit
        return process.pid

    def reap(self) -> None:
        """Collect every ended child and hand its wait status to whoever started it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._popen.pop(pid, None)
            if process:
                process.returncode = os.waitstatus_to_exitcode(status)
            on_exit = self._on_exit.pop(pid, None)
            if on_exit:
                on_exit(status)


def members(group: str) -> tuple[int, ...]:
    """Living processes that carry the mark of a control group, ascending."""
    mark = f"{CGROUP_VARIABLE}={group}".encode()
    return tuple(sorted(pid for pid in process_ids() if mark in _environment(pid) and is_alive(pid)))


def members_below(prefix: str) -> tuple[int, ...]:
    """Living processes of all control groups below `prefix`, ascending."""
    mark = f"{CGROUP_VARIABLE}={prefix}/".encode()
    return tuple(
        sorted(
            pid for pid in process_ids() if any(item.startswith(mark) for item in _environment(pid)) and is_alive(pid)
        )
    )


def process_ids() -> tuple[int, ...]:
    """All process ids that /proc shows."""
    return tuple(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return _state(pid) not in {"", "Z", "X"}


def command_name(pid: int) -> str:
    """The kernel's short name of a process ("vllm"); empty once it is gone."""
    return _read(f"{pid}/comm").decode("utf-8", "replace").rstrip("\n")


def command_line(pid: int) -> str:
    """The argument vector of a process joined by spaces; empty once it is gone."""
    return _read(f"{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def executable(pid: int) -> str:
    """The program file that a process runs; empty when it may not be known."""
    with contextlib.suppress(OSError):
        return str((_PROC / str(pid) / "exe").readlink())
    return ""


def kill(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes, ignoring those that are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _state(pid: int) -> str:
    fields = _read(f"{pid}/stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def _environment(pid: int) -> list[bytes]:
    return _read(f"{pid}/environ").split(b"\0")


def _read(name: str) -> bytes:
    try:
        return (_PROC / name).read_bytes()
    except OSError:
        return b""


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
