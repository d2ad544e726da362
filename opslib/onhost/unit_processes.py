"""The processes of a unit, from /proc and its control group: when one ends, what they use, where they listen."""

import contextlib
import os
import select
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from opslib.onhost.processes import read_text

_MOUNTS = {"": ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "name=systemd": ("/sys/fs/cgroup/systemd",)}
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp (proc(5))


class Usage(NamedTuple):
    """Seconds of processor time and bytes read from disks so far; None where that may not be read."""

    cpu_s: float
    read_bytes: Optional[int]


class Ending:
    """Knows when a process has ended: by its descriptor where kernel and Python have them, else by looking."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = -1
        with contextlib.suppress(AttributeError, OSError):  # Python 3.9 and Linux 5.3 have it
            self.descriptor = os.pidfd_open(pid)  # novm

    def has_come(self) -> bool:
        """Whether the process is gone, or a zombie."""
        if self.descriptor >= 0:  # also where its number was given to another one
            return bool(select.select([self.descriptor], [], [], 0)[0])
        state = read_text("/proc/%d/stat" % self.pid).rpartition(")")[2].split()[:1]
        return not state or state[0] in ("Z", "X")

    def close(self) -> None:
        """Give the descriptor back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def control_group(main_pid: int, unit: str) -> str:
    """The directory of the unit's control group, "" where its main process lives in another one."""
    for line in read_text("/proc/%d/cgroup" % main_pid).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        head, found, _ = path.partition("/" + unit)
        for mount in _MOUNTS.get(controllers, ()) if found else ():
            if os.path.isfile(mount + head + found + "/cgroup.procs"):
                return mount + head + found
    return ""


def processes_of(main_pid: int, unit: str) -> List[int]:
    """The main process first, then all others of the unit: of its control group, else the main one's descendants."""
    group = control_group(main_pid, unit)
    found = _in_group(group) if group else _below(main_pid)
    return [main_pid, *sorted(found - {main_pid})]


def usage_of(main_pid: int, unit: str) -> Usage:
    """What the unit's processes have used so far."""
    group = control_group(main_pid, unit)
    spent = dict(_pairs(read_text(group + "/cpu.stat"))).get("usage_usec") if group else None
    if spent is not None:
        rows = read_text(group + "/io.stat").split()
        read = [word[7:] for word in rows if word.startswith("rbytes=")]
        if read:
            return Usage(int(spent) / 1e6, sum(int(number) for number in read))
    pids = processes_of(main_pid, unit)
    reads = [_read_bytes(pid) for pid in pids]
    cpu_s = int(spent) / 1e6 if spent is not None else sum(_cpu_s(pid) for pid in pids)
    return Usage(cpu_s, None if None in reads else sum(number or 0 for number in reads))


def listens(pids: List[int], port: int) -> Optional[bool]:
    """Whether one of these processes listens on the TCP port; None where their files may not be looked at."""
    wanted = {"socket:[%s]" % inode for inode in _listening_inodes(pids[0], port)} if pids else set()
    is_blind = False
    for pid in pids if wanted else ():
        descriptors = _descriptors(pid)
        is_blind = is_blind or descriptors is None
        if any(_target("/proc/%d/fd/%s" % (pid, name)) in wanted for name in descriptors or ()):
            return True
    return None if is_blind else False


def environment_of(pid: int) -> Dict[str, str]:
    """The environment that a process was started with; empty where it may not be read."""
    words = read_text("/proc/%d/environ" % pid).split("\0")
    return dict(word.partition("=")[::2] for word in words if "=" in word)


def _in_group(group: str) -> Set[int]:
    found = set()
    for place, _, files in os.walk(group):
        if "cgroup.procs" in files:
            found |= {int(pid) for pid in read_text(place + "/cgroup.procs").split()}
    return found


def _below(pid: int) -> Set[int]:
    found, todo = set(), [pid]  # type: Set[int], List[int]
    while todo:
        for child in _children(todo.pop()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def _children(pid: int) -> Iterator[int]:
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return
    for task in tasks:
        for child in read_text("/proc/%d/task/%s/children" % (pid, task)).split():
            yield int(child)


def _cpu_s(pid: int) -> float:
    fields = read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _read_bytes(pid: int) -> Optional[int]:
    text = read_text("/proc/%d/io" % pid)
    if not text:
        return None if os.path.isdir("/proc/%d" % pid) else 0
    return int(dict(_pairs(text.replace(":", ""))).get("read_bytes", "0"))


def _pairs(text: str) -> Iterator[List[str]]:
    return (line.split() for line in text.splitlines() if len(line.split()) == 2)


def _listening_inodes(pid: int, port: int) -> Set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in read_text("/proc/%d/net/%s" % (pid, table)).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _descriptors(pid: int) -> Optional[List[str]]:
    try:
        return os.listdir("/proc/%d/fd" % pid)
    except PermissionError:
        return None
    except OSError:
        return []


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
