"""The two long-lived children of a watch: a following journalctl and a looping nvidia-smi, handed on as they speak."""

import contextlib
import json
import os
import select
import subprocess
import threading
from typing import Any, Callable, List, Optional

_CHUNK = 1 << 16
_BATCH_S = 0.1  # a loop's answer is whole when nothing follows for so long
_AGAIN_S = (1.0, 5.0)  # journalctl, nvidia-smi: pauses before one that ended is started again
_BY_SYSTEMD = b'"SYSLOG_IDENTIFIER":"systemd"'
_MAX_LINE = 1 << 22


class Feed:
    """One child that is read in a thread of its own; ended with `close`."""

    def __init__(self, argv: List[str], stop: threading.Event) -> None:
        self.argv = list(argv)
        self._stop = stop
        self._child: "Optional[subprocess.Popen[bytes]]" = None

    def start(self, target: Callable[[], None]) -> None:
        """Read on, until the watch ends."""
        threading.Thread(target=target, daemon=True).start()

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start the child; raises OSError."""
        self._child = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return self._child

    def close(self) -> None:
        """End the child, gently first."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Journal(Feed):
    """Hands entries on as journalctl prints them, many at once where many come; reads on by cursor."""

    def __init__(self, argv: List[str], stop: threading.Event, out: Any, on_systemd: Callable[[], None]) -> None:
        super().__init__(argv, stop)
        self._out = out
        self._on_systemd = on_systemd
        self._last = b""
        self.has_spoken = False  # an entry came since journalctl was started

    def run(self) -> None:
        """Follow; where journalctl ends by itself it is started again after the last entry."""
        while not self._stop.is_set():
            try:
                child = self.spawn()
            except OSError as error:
                self._out.tell("problem", {"text": "journalctl: %s" % error})
                return
            assert child.stdout is not None
            assert child.stderr is not None
            self._copy(child.stdout.fileno())
            self.has_spoken = False
            self._on_systemd()  # what it would have said of the unit
            complaint = child.stderr.read(2000).decode("utf-8", "replace").strip()
            status = child.wait()
            if self._stop.is_set():
                return
            self._out.tell("problem", {"text": "journalctl ended (status %d) %s" % (status, complaint)})
            self._go_on_after(self._last)
            self._stop.wait(_AGAIN_S[0])

    def _copy(self, descriptor: int) -> None:
        rest = b""
        while not self._stop.is_set():
            data = os.read(descriptor, _CHUNK)
            if not data:
                return
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE:
                rest = b""
            entries = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
            if entries:
                self._last, self.has_spoken = entries[-1], True
                self._out.write("journal", [b'"entry":' + entry for entry in entries])
            if any(_BY_SYSTEMD in entry for entry in entries):
                self._on_systemd()

    def _go_on_after(self, last: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            cursor = json.loads(last.decode("utf-8", "replace")).get("__CURSOR") if last else None
            if cursor:
                kept = [word for word in self.argv if not word.startswith("--after-cursor=")]
                at = next((i for i, word in enumerate(kept) if word.startswith(("--unit=", "--user-unit="))), len(kept))
                self.argv = [*kept[:at], "--after-cursor=%s" % cursor, *kept[at:]]


class GpuLoop(Feed):
    """Hands on what the looping nvidia-smi says, when it says something else than before."""

    def __init__(self, argv: List[str], stop: threading.Event, out: Any) -> None:
        super().__init__(argv, stop)
        self._out = out

    def run(self) -> None:
        """Read on; a loop that ends is started again (a driver may be reloaded), unless there is no such program."""
        known = b""
        while not self._stop.is_set():
            try:
                child = self.spawn()
            except OSError:
                return
            assert child.stdout is not None
            known = self._copy(child.stdout.fileno(), known)
            child.wait()
            self._stop.wait(_AGAIN_S[1])

    def _copy(self, descriptor: int, known: bytes) -> bytes:
        batch, is_open = b"", True
        while is_open and not self._stop.is_set():
            if select.select([descriptor], [], [], _BATCH_S if batch else 1.0)[0]:
                data = os.read(descriptor, _CHUNK)
                batch, is_open = batch + data, bool(data)
                if is_open:
                    continue
            if batch:
                if batch != known:
                    self._out.tell("gpu", {"text": batch.decode("utf-8", "replace")})
                known, batch = batch, b""
        return known
