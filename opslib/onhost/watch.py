"""Watches one launch on the host: journal as it comes, `/health`, unit state, GPU memory, one JSON line per change.

Lines are {"type": "journal" | "health" | "unit" | "gpu" | "tick" | "problem", "at": unix time, ...}: a journal line
carries the entry as journalctl printed it, unit and gpu the command's own answer as text. A tick every two seconds says
that the link works. Runs under Python 3.8 with the standard library only; ends on SIGTERM, or when nobody reads any
more.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any, Dict, List, Optional

_HEALTH_TIMEOUT_S = 1.0
_COMMAND_TIMEOUT_S = 5.0
_TICK_S = 2.0
_GPU_INTERVAL_S = 2.0
_MAX_LINE = 1_000_000


class _Out:
    """Writes whole lines from several threads; when nobody reads any more, the program is to end."""

    def __init__(self, stop: threading.Event) -> None:
        self._lock = threading.Lock()
        self._stop = stop

    def write(self, kind: str, fields: str) -> None:
        """One event: `fields` is JSON text without the outer braces."""
        line = '{"type":"%s","at":%.6f,%s}\n' % (kind, time.time(), fields)
        try:
            with self._lock:
                sys.stdout.write(line)
                sys.stdout.flush()
        except (OSError, ValueError):
            self._stop.set()


def main(arguments: Dict[str, Any]) -> int:
    """Runs until SIGTERM: `show`, `journal` and `gpu` are argument vectors (the last two may be null).

    `port` is asked for `health_path`.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    out = _Out(stop)
    children: "List[subprocess.Popen[bytes]]" = []
    threads = []
    if arguments.get("journal"):
        threads.append(threading.Thread(target=_follow, args=(arguments["journal"], out, stop, children), daemon=True))
    if arguments.get("gpu"):
        threads.append(threading.Thread(target=_watch_gpus, args=(arguments["gpu"], out, stop), daemon=True))
    for thread in threads:
        thread.start()
    try:
        _poll(arguments, out, stop)
    finally:
        for child in children:
            _end(child)
    return 0


def _follow(argv: List[str], out: _Out, stop: threading.Event, children: "List[subprocess.Popen[bytes]]") -> None:
    """The journal as a child of this process; started again when it ends by itself (a rotated or vacuumed journal)."""
    cursor_at = next((i for i, word in enumerate(argv) if word.startswith("--after-cursor=")), None)
    argv = list(argv)
    while not stop.is_set():
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except OSError as error:
            out.write("problem", '"text":%s' % json.dumps("journalctl: %s" % error))
            return
        children.append(child)
        cursor = _copy_lines(child.stdout, out, stop)  # type: ignore[arg-type]
        complaint = child.stderr.read(2000).decode("utf-8", "replace").strip()  # type: ignore[union-attr]
        child.wait()
        children.remove(child)
        if stop.is_set():
            return
        if child.returncode and complaint:
            out.write("problem", '"text":%s' % json.dumps("journalctl: " + complaint))
        if cursor and cursor_at is not None:
            argv[cursor_at] = "--after-cursor=" + cursor
        stop.wait(1.0)


def _copy_lines(stream: IO[bytes], out: _Out, stop: threading.Event) -> str:
    """Hands entries on as they are, and returns the last one's cursor."""
    last = b""
    for raw in iter(lambda: stream.readline(_MAX_LINE), b""):
        if stop.is_set():
            break
        line = raw.strip()
        if line.startswith(b"{") and line.endswith(b"}"):
            last = line
            out.write("journal", '"entry":' + line.decode("utf-8", "replace"))
    try:
        return str(json.loads(last).get("__CURSOR", "")) if last else ""
    except ValueError:
        return ""


def _poll(arguments: Dict[str, Any], out: _Out, stop: threading.Event) -> None:
    """Asks `/health` and systemd in turn, and says when an answer differs from the one before."""
    seen: Dict[str, str] = {}
    next_tick = 0.0
    while not stop.is_set():
        began = time.monotonic()
        _say_if_new(out, seen, "unit", '"text":%s' % json.dumps(_run(arguments["show"])))
        code = _health(arguments["port"], arguments.get("health_path", "/health"))
        _say_if_new(out, seen, "health", '"status_code":%s' % json.dumps(code))
        if began >= next_tick:
            out.write("tick", '"pid":%d' % os.getpid())
            next_tick = began + _TICK_S
        stop.wait(max(0.05, arguments.get("interval_s", 0.5) - (time.monotonic() - began)))


def _watch_gpus(argv: List[str], out: _Out, stop: threading.Event) -> None:
    """GPU memory in a thread of its own: nvidia-smi may hang on a sick GPU."""
    seen: Dict[str, str] = {}
    while not stop.is_set():
        _say_if_new(out, seen, "gpu", '"text":%s' % json.dumps(_run(argv)))
        stop.wait(_GPU_INTERVAL_S)


def _say_if_new(out: _Out, seen: Dict[str, str], kind: str, fields: str) -> None:
    if seen.get(kind) != fields:
        seen[kind] = fields
        out.write(kind, fields)


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


def _health(port: int, path: str) -> Optional[int]:
    """The status code that the loopback address answers with, None where nothing answers."""
    connection = http.client.HTTPConnection(
        os.environ.get("OPSLIB_LOOPBACK", "127.0.0.1"), port, timeout=_HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ends a child, gently first."""
    child.terminate()
    try:
        child.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
