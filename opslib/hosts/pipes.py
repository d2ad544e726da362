"""A started command, wherever it runs: exchange bytes with it until it ends, or read its lines as they come."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, Self

HEARTBEAT_S = 20.0
LINK_TIMEOUT_S = 120.0  # several heartbeats: a program on the host may then assume that nobody listens
_INLINE_BYTES = 32_768  # fits into every pipe and window, so writing it cannot block
_CLOSE_S = 8.0  # a tree gets 2 s after SIGTERM, then SIGKILL
_KEPT_ERROR_BYTES = 65_536


class Pipe(Protocol):
    """The three standard streams of one running command."""

    def read(self, timeout_s: float | None) -> bytes:
        """The next bytes of standard output, empty at its end; raises TimeoutError."""

    def read_error(self, timeout_s: float | None) -> bytes:
        """The same for standard error."""

    def write(self, data: bytes) -> None:
        """Write all of it to standard input; raises OSError when nobody reads any more."""

    def end_input(self) -> None:
        """Close standard input."""

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, None while it runs; -1 when it ended without one."""

    @property
    def is_lost(self) -> bool:
        """Whether the way to the command is broken."""

    def close(self) -> None:
        """Give everything up."""


class Exchange:
    """What a command that ended gave back."""

    def __init__(self) -> None:
        self.exit_status: int | None = None
        self.stdout = bytearray()
        self.stderr = bytearray()


def exchange(pipe: Pipe, given: bytes, *, deadline: float, is_held_open: bool = False) -> Exchange:
    """Write `given`, read both outputs to their ends and wait; exit_status stays None when the time is up.

    `is_held_open` keeps standard input open until the command ends (programs take its end for a lost link).
    """
    done = threading.Event()
    got = Exchange()
    threads = [threading.Thread(target=_drain, args=(pipe.read_error, got.stderr, deadline), daemon=True)]
    if is_held_open or len(given) > _INLINE_BYTES:
        threads.append(threading.Thread(target=_feed, args=(pipe, given, done, is_held_open), daemon=True))
    else:
        _feed(pipe, given, done, is_held_open=False)
    for thread in threads:
        thread.start()
    try:  # an interrupt by the operator gives the command up as well
        _drain(pipe.read, got.stdout, deadline)
        got.exit_status = pipe.wait(max(0.0, deadline - time.monotonic()))
        threads[0].join(max(0.1, deadline - time.monotonic()))
    finally:
        done.set()
        pipe.close()
    return got


def _drain(read: Callable[[float | None], bytes], sink: bytearray, deadline: float) -> None:
    with contextlib.suppress(OSError):
        while chunk := read(max(0.01, deadline - time.monotonic())):
            sink += chunk


def _feed(pipe: Pipe, given: bytes, done: threading.Event, is_held_open: bool) -> None:
    with contextlib.suppress(OSError):
        if given:
            pipe.write(given)
        while is_held_open and not done.wait(HEARTBEAT_S):
            pipe.write(b"\n")
        if not is_held_open:
            pipe.end_input()


class Lines:
    """The lines of a supervised command; its standard input is the lifeline that `close` cuts.

    After the last line `exit_status` and `error_text` tell how it ended; `explain` may turn that into an error.
    """

    def __init__(self, pipe: Pipe, given: bytes, explain: Callable[[int | None, str, bool], None]) -> None:
        self._pipe = pipe
        self._explain = explain
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._stderr = bytearray()
        self.exit_status: int | None = None
        self._errors = threading.Thread(target=self._keep_errors, daemon=True)
        self._errors.start()
        threading.Thread(target=self._beat, args=(given,), daemon=True).start()

    @property
    def error_text(self) -> str:
        """The end of standard error, stripped."""
        return self._stderr.decode("utf-8", "replace").strip()

    def __iter__(self) -> Iterator[bytes]:
        rest = bytearray()
        with contextlib.suppress(OSError):
            while (chunk := self._pipe.read(None)) and not self._closing.is_set():
                rest += chunk
                *lines, tail = rest.split(b"\n")
                rest = bytearray(tail)
                yield from map(bytes, lines)
        if self._closing.is_set():
            return
        if rest:
            yield bytes(rest)
        self.exit_status = self._pipe.wait(5.0)
        self._errors.join(1.0)
        is_lost = self._pipe.is_lost
        self.close()
        self._explain(self.exit_status, self.error_text, is_lost)

    def close(self) -> None:
        """End the command: it gets a few seconds, then the way to it is cut."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
            with contextlib.suppress(OSError):
                self._pipe.end_input()
            threading.Thread(target=self._discard, daemon=True).start()
            status = self._pipe.wait(_CLOSE_S)
            self.exit_status = status if self.exit_status is None else self.exit_status
            self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self, given: bytes) -> None:
        with contextlib.suppress(OSError):
            self._pipe.write(given)
            while not self._closing.wait(HEARTBEAT_S):
                self._pipe.write(b"\n")

    def _discard(self) -> None:
        """Read what is left, so that nobody on the way waits to get rid of it."""
        with contextlib.suppress(OSError):
            while self._pipe.read(_CLOSE_S):
                pass

    def _keep_errors(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._pipe.read_error(None):
                self._stderr += chunk
                del self._stderr[:-_KEPT_ERROR_BYTES]
