"""The machine at hand as a host: the same vectors and programs over subprocess, without SSH."""

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from opslib.hosts.commands import CommandHost
from opslib.hosts.pipes import Pipe


class ProcessPipe:
    """A `Pipe` to a child process with a process group of its own."""

    is_lost = False

    def __init__(self, vector: Sequence[str]) -> None:
        # Through a shell as sshd does it, so that a missing program is exit status 127 here as well.
        self._process = subprocess.Popen(
            ["sh", "-c", f"exec {shlex.join(vector)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def read(self, timeout_s: float | None) -> bytes:
        """The next bytes of standard output."""
        return _read(self._process.stdout, timeout_s)

    def read_error(self, timeout_s: float | None) -> bytes:
        """The next bytes of standard error."""
        return _read(self._process.stderr, timeout_s)

    def write(self, data: bytes) -> None:
        """Write all of it to standard input."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(_descriptor(self._process.stdin), view) :]
        except ValueError as error:
            raise BrokenPipeError from error

    def end_input(self) -> None:
        """Close standard input."""
        if self._process.stdin:
            self._process.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """The exit status; a signal counts as 128 and its number, as in a shell."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """End what is left of the process group, and close the pipes."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.end_input()


def _descriptor(stream: IO[bytes] | None) -> int:
    if stream is None:
        raise BrokenPipeError
    return stream.fileno()


def _read(stream: IO[bytes] | None, timeout_s: float | None) -> bytes:
    descriptor = _descriptor(stream)
    if not select.select([descriptor], [], [], timeout_s)[0]:
        raise TimeoutError
    return os.read(descriptor, 65_536)


class LocalHost(CommandHost):
    """The machine that this program runs on (`address = "local"`)."""

    @property
    def _is_root(self) -> bool:
        return os.geteuid() == 0

    def _start(self, vector: Sequence[str]) -> Pipe:
        return ProcessPipe(vector)

    def close(self) -> None:
        """Nothing is kept open."""

    @contextmanager
    def forward_port(self, remote_port: int) -> Iterator[int]:
        """The port itself: this machine's loopback is the host's."""
        yield remote_port
