"""Start a program that was sent over standard input, and end it with everything it started when the link goes.

`opslib.hosts.program.BOOT` registers the modules and calls `start`. Standard input stays open as long as
somebody waits for the program: its end, or silence for longer than `link_timeout_s`, means that nobody does.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, Dict, Optional, Set

LINK_LOST = 75  # EX_TEMPFAIL of sysexits.h
FAILED = 70  # EX_SOFTWARE of sysexits.h


def start(bundle: Dict[str, Any]) -> None:
    """Run `main(arguments)` of the bundle's main module, then exit with the status that it returned."""
    watch = threading.Thread(target=_watch_link, args=(bundle.get("link_timeout_s"),), daemon=True)
    watch.start()
    main = sys.modules["opslib.onhost." + bundle["main"]].main
    try:
        status = main(bundle["arguments"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else FAILED if error.code else 0
        sys.stderr.write("" if isinstance(error.code, int) else str(error.code or ""))
    except BaseException:
        traceback.print_exc()
        status = FAILED
    _exit(status or 0)


def descendants() -> Set[int]:
    """Process ids of everything below this process that still runs, from /proc (elsewhere from ps)."""
    parents = _parents_from_proc() if os.path.isdir("/proc/self") else _parents_from_ps()
    found = {os.getpid()}
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in found} - found
        found |= below
        grown = bool(below)
    return found - {os.getpid()}


def end_descendants(grace_s: float = 2.0) -> None:
    """Ask every descendant to end (SIGTERM), and end those that are left after `grace_s` (SIGKILL)."""
    began_at = time.monotonic()
    asked: Set[int] = set()
    while time.monotonic() < began_at + grace_s + 5.0:
        left = descendants()
        if not left:
            return
        is_patient = time.monotonic() < began_at + grace_s
        for pid in left:
            if is_patient and pid in asked:
                continue
            _signal(pid, signal.SIGTERM if is_patient else signal.SIGKILL)
            asked.add(pid)
        time.sleep(0.02)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends, so that none escapes (prctl(2), Linux only)."""
    try:
        import ctypes  # noqa: PLC0415 - absent from minimal Pythons

        return bool(ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0)  # PR_SET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        return False


def _watch_link(link_timeout_s: Optional[float]) -> None:
    while True:
        try:
            ready = select.select([0], [], [], link_timeout_s)[0]
            if not ready or not os.read(0, 65536):
                break
        except OSError:
            break
    end_descendants()
    os._exit(LINK_LOST)


def _exit(status: int) -> None:
    # No interpreter shutdown: the watching thread sits in a system call, and nothing is left to tidy.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        status = status or FAILED
    os._exit(status)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _parents_from_proc() -> Dict[int, int]:
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/" + name + "/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    return parents


def _parents_from_ps() -> Dict[int, int]:
    listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,stat="], universal_newlines=True)
    rows = (line.split() for line in listing.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 3 and not row[2].startswith("Z")}
