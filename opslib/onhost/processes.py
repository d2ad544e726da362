"""Who a process is: name, user, start, and the unit that it belongs to, from /proc alone."""

import os
import pwd
import re
import time
from typing import Any, Callable, Dict, List

_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


def unit_of_cgroup(text: str) -> str:
    """The innermost service or scope that /proc/PID/cgroup names, "" for none.

    >>> unit_of_cgroup("0::/system.slice/vllm-minimax.service")
    'vllm-minimax.service'
    """
    for line in text.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        units = _UNIT.findall(path)
        if units and controllers in ("", "name=systemd"):
            return str(units[-1])
    return ""


def boot_id() -> str:
    """Which boot of the machine it is, as the kernel tells it; of a practice host, as that one does."""
    return os.environ.get("OPSLIB_BOOT_ID") or read_text("/proc/sys/kernel/random/boot_id").strip()


def wall_clock() -> Callable[[], float]:
    """What tells the host's wall clock; a practice host's may be set without the machine's."""
    path = os.environ.get("OPSLIB_CLOCK")
    if not path:
        return time.time
    return lambda: time.time() + float(read_text(str(path)) or 0)


def ancestors(pid: int) -> List[int]:
    """The process itself and everything above it, nearest first; ends where /proc does."""
    chain = []  # type: List[int]
    while pid > 0 and pid not in chain:
        fields = _stat(pid)
        if not fields:
            break
        chain.append(pid)
        pid = int(fields[1])
    return chain


def describe(pid: int, main_pids: Dict[int, str]) -> Dict[str, Any]:
    """One process; `main_pids` are the main processes of known units, whose descendants belong to them."""
    fields = _stat(pid)
    if not fields:
        return {"pid": pid, "is_gone": True}
    unit = next((main_pids[above] for above in ancestors(pid) if above in main_pids), "")
    return {
        "pid": pid,
        "name": read_text("/proc/%d/comm" % pid).strip(),
        "user": _user(pid),
        "started_at": time.time() - uptime_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        "unit": unit or unit_of_cgroup(read_text("/proc/%d/cgroup" % pid)),
    }


def command_line(pid: int) -> List[str]:
    """The argument vector of a process; empty once it is gone, or where it may not be read."""
    text = read_text("/proc/%d/cmdline" % pid)
    return text.rstrip("\0").split("\0") if text else []


def uptime_s() -> float:
    """Seconds since this machine was booted."""
    return float((read_text("/proc/uptime").split() or ["0"])[0])


def read_text(path: str, limit: int = 1000000) -> str:
    """A file's text, "" where it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def _stat(pid: int) -> List[str]:
    """/proc/PID/stat after the name: state, parent, ... (proc(5); the name may hold blanks and parentheses)."""
    return read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()


def _user(pid: int) -> str:
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return ""
    except KeyError:
        return str(uid)
