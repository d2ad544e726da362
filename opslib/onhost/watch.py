"""Watches one unit on its host and tells, as one stream of JSON lines, what happens to it when it happens.

Lines are {"type": ..., "at": unix time, ...}: "hello" (boot, clock) once, "journal" (an entry as journalctl printed
it), "unit" (systemctl's answer, when it differs), "exit" (the main process has ended), "health" (code, latency),
"answer" (one real answer of the engine), "gpu" (nvidia-smi's answer, when it differs), "tick" every two seconds (the
link works; what the unit has used so far) and "problem". Runs under Python 3.8 with the standard library only; ends on
SIGTERM, or when nobody reads any more.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from opslib.onhost.processes import boot_id, wall_clock
from opslib.onhost.unit_processes import Ending, usage_of
from opslib.onhost.unit_traces import traces_of
from opslib.onhost.watch_feeds import Feed, GpuLoop, Journal
from opslib.onhost.watch_probe import Prober

_COMMAND_TIMEOUT_S = 5.0
_TICK_S = 2.0
_LOOK_S = 0.1  # how often a process is looked for that has no descriptor
_SETTLING_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)  # systemd is asked again so long after something happened
_SHOW_GAP_S = 0.08
_STEP_S = 0.5
_TRACED_SHOW_S = 60.0  # where a change of the unit leaves traces that cost nothing to look at


class Out:
    """Writes whole lines from several threads; when nobody reads any more, the program is to end."""

    def __init__(self, stop: threading.Event) -> None:
        self._lock = threading.Lock()
        self._stop = stop
        self._clock = wall_clock()
        self._offset = self._clock() - time.monotonic()

    def tell(self, kind: str, fields: Dict[str, Any]) -> None:
        """One event."""
        self.write(kind, [json.dumps(fields)[1:-1].encode()])

    def write(self, kind: str, bodies: List[bytes]) -> None:
        """Several events of one kind: each body is JSON without the outer braces."""
        with self._lock:
            now, monotonic = self._clock(), time.monotonic()
            head = b'{"type":"%s","at":%.6f,' % (kind.encode(), now)
            clock = b""
            if abs(now - monotonic - self._offset) > _STEP_S:  # the clock was set: said before anything is dated by it
                self._offset = now - monotonic
                clock = b'{"type":"tick","at":%.6f,"monotonic_s":%.6f}\n' % (now, monotonic)
            data = clock + b"".join(head + body + b"}\n" for body in bodies)
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            except (OSError, ValueError):
                self._stop.set()


def main(arguments: Dict[str, Any]) -> int:
    """Runs until SIGTERM.

    `show`, `journal` and `gpu` are argument vectors (the last two may be null); `unit` names what is watched;
    `health_path` is asked at `port` unless the unit's own command line says another; without `wants_answer` no token
    is asked for; `interval_s` is how often systemd is asked where nothing happens.
    """
    stop = threading.Event()
    watch = _Watch(arguments, Out(stop), stop)
    signal.signal(signal.SIGTERM, lambda *_: watch.end())
    try:
        watch.run()
    finally:
        watch.close()
    return 0


class _Watch:
    """The main thread: waits for the main process's end, asks systemd when something happened."""

    def __init__(self, arguments: Dict[str, Any], out: Out, stop: threading.Event) -> None:
        self._arguments = arguments
        self._out = out
        self._stop = stop
        self._unit = str(arguments.get("unit") or "")
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._ending: Optional[Ending] = None
        self._ended_pid = -1
        self._shown = ""
        self._shown_at = 0.0
        self._due: List[float] = []
        self._traces = traces_of(self._unit)
        self._invocation_id = ""
        self._journal: Optional[Journal] = None
        self._feeds: List[Feed] = []
        pace_s = float(arguments.get("health_interval_s") or 0.5)
        path = str(arguments.get("health_path") or "/health")
        self._prober = Prober(out.tell, stop, unit=self._unit, port=arguments["port"], path=path, pace_s=pace_s)

    def run(self) -> None:
        """Until the end."""
        self._hello()
        self._begin()
        next_tick = time.monotonic()
        self._hurry()
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= next_tick:
                self._tick()
                self._look_for_traces()
                next_tick = now + _TICK_S
            if self._due and now >= self._due[0]:
                self._due = [at for at in self._due[1:] if at > now] or [now + self._interval_s]
                self._show()
            self._wait(min([next_tick, *self._due[:1]]) - time.monotonic())

    @property
    def _interval_s(self) -> float:
        asked_s = float(self._arguments.get("interval_s") or 5.0)
        is_traced = bool(self._invocation_id) and self._traces[0] == self._invocation_id
        has_spoken = self._journal is not None and self._journal.has_spoken  # else it may not be readable here
        return max(asked_s, _TRACED_SHOW_S) if is_traced and has_spoken else asked_s

    def _look_for_traces(self) -> None:
        traces = traces_of(self._unit)
        if traces != self._traces:
            self._traces = traces
            self._hurry()

    def end(self) -> None:
        """Let `run` return."""
        self._stop.set()
        self._wake()

    def close(self) -> None:
        """End the children."""
        for feed in self._feeds:
            feed.close()

    def _hello(self) -> None:
        self._out.tell("hello", {"boot_id": boot_id(), "monotonic_s": time.monotonic(), "pid": os.getpid()})

    def _begin(self) -> None:
        if self._arguments.get("journal"):
            self._journal = Journal(self._arguments["journal"], self._stop, self._out, self._wake)
            self._journal.start(self._journal.run)
            self._feeds.append(self._journal)
        if self._arguments.get("gpu"):
            loop = GpuLoop(self._arguments["gpu"], self._stop, self._out)
            loop.start(loop.run)
            self._feeds.append(loop)
        self._prober.start(wants_answer=bool(self._arguments.get("wants_answer", True)))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it wakes anyway
            os.write(self._wake_w, b"!")

    def _wait(self, seconds: float) -> None:
        ending = self._ending
        is_blind = ending is not None and ending.descriptor < 0
        readers = [self._wake_r] + ([ending.descriptor] if ending is not None and not is_blind else [])
        ready = select.select(readers, [], [], max(0.0, min(seconds, _LOOK_S) if is_blind else seconds))[0]
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
            self._hurry()
        if ending is not None and (ending.descriptor in ready or is_blind) and self._tell_ending():
            self._hurry()

    def _tell_ending(self) -> bool:
        """Say so where the main process has ended."""
        ending = self._ending
        if ending is None or not ending.has_come():
            return False
        self._out.tell("exit", {"pid": ending.pid})
        self._ended_pid = ending.pid  # systemd may name it for a moment longer
        self._forget_process()
        return True

    def _hurry(self) -> None:
        now = max(time.monotonic(), self._shown_at + _SHOW_GAP_S)
        self._due = [now + wait for wait in _SETTLING_S]

    def _show(self) -> None:
        text = _run(self._arguments["show"])
        self._shown_at = time.monotonic()
        self._tell_ending()  # it may have ended while systemd was asked
        if text == self._shown:
            return
        self._shown = text
        self._out.tell("unit", {"text": text})
        fields = dict(line.partition("=")[::2] for line in text.splitlines())
        pid = int(fields.get("MainPID") or 0)
        self._unit = fields.get("Id") or self._unit
        self._invocation_id = fields.get("InvocationID") or ""
        self._traces = traces_of(self._unit)
        if pid not in (self._ended_pid, self._ending.pid if self._ending else -1):
            self._forget_process()
            self._ending = Ending(pid) if pid else None
            self._prober.look_at(pid)

    def _forget_process(self) -> None:
        if self._ending is not None:
            self._ending.close()
        self._ending = None

    def _tick(self) -> None:
        fields: Dict[str, Any] = {"monotonic_s": time.monotonic(), "health_ms": self._prober.latency_ms}
        if self._ending is not None:
            usage = usage_of(self._ending.pid, self._unit)
            fields.update(cpu_s=round(usage.cpu_s, 3), read_bytes=usage.read_bytes)
        self._out.tell("tick", fields)


def _run(argv: List[str]) -> str:
    """A command's standard output, "" where it fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
