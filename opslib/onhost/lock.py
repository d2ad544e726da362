"""Holds the lock of a unit as long as somebody listens: the kernel frees it when this program ends, however it ends.

The lock is flock(2) on a file that also names its holder. Standard input is the lifeline (see `boot`): without it
the program ends. Prints one JSON line, {"state": "held" | "busy" | "problem" | "gone", ...}, and holds on after "held".
Arguments: {"path", "directory_mode", "holder": JSON to keep in the file, "is_free": true to free it in order instead}.
"""

import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
import time
from typing import Any, Dict, Optional

from opslib.onhost.processes import read_text

_PATIENCE_S = 5.0  # for the end of an earlier program of the same holder
_LOOK_EVERY_S = 1.0
_MAX_BYTES = 65536


def main(arguments: Dict[str, Any]) -> int:
    """Take the lock and hold it until the end; exit status 0 where it was freed, 1 where it was not to be had."""
    path = arguments["path"]
    try:
        if arguments.get("is_free"):
            return _free(path, arguments["holder"])
        return _hold(path, arguments)
    except OSError as error:
        tell(state="problem", problem=error.strerror or str(error), path=error.filename or path, errno=error.errno)
        return 1


def tell(**fields: Any) -> None:
    """One JSON line."""
    print(json.dumps(fields), flush=True)


def _hold(path: str, arguments: Dict[str, Any]) -> int:
    _make_directory(os.path.dirname(path), arguments["directory_mode"])
    file = _locked(path, arguments["holder"])
    if file is None:
        holder = read_lock(path)
        tell(state="busy", holder=holder.get("holder"), pid=holder.get("pid"))
        return 1
    left_over = _read(file)
    own = {"holder": arguments["holder"], "pid": os.getpid(), "started_ticks": started_ticks(os.getpid())}
    os.ftruncate(file, 0)
    os.pwrite(file, (json.dumps(own) + "\n").encode("utf-8"), 0)
    tell(state="held", pid=os.getpid(), left_over=left_over.get("holder"))
    while _is_at(path, file):
        time.sleep(_LOOK_EVERY_S)
    tell(state="gone")  # somebody removed the file: another could lock a new one
    return 1


def _make_directory(directory: str, mode: int) -> None:
    if not os.path.isdir(directory):
        os.makedirs(os.path.dirname(directory), mode=0o755, exist_ok=True)
        os.mkdir(directory)
        os.chmod(directory, mode)


def _locked(path: str, holder: Any) -> Optional[int]:
    """The file, locked; None where another holder has it. An earlier program of the same holder is ended for it."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                return file
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            found = read_lock(path)
            if (found and found.get("holder") != holder) or time.monotonic() > give_up_at:
                return None
            _end_earlier(found)
        os.close(file)
        time.sleep(0.05)


def _opened(path: str) -> int:
    """The file, made where there is none; never through a link, never something that is no file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags)  # without O_CREAT: see fs.protected_regular in proc_sys_fs(5)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(made, 0o666)  # whoever may log in may take it after us
            return made
        file = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "is no plain file", path)
    return file


def _is_at(path: str, file: int) -> bool:
    """Whether the open file is still the one that everybody finds at this path."""
    try:
        there = os.stat(path)
    except OSError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def read_lock(path: str) -> Dict[str, Any]:
    """What a lock file says: holder, process id and its start; empty where it says nothing."""
    try:
        found = json.loads(read_text(path, _MAX_BYTES))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(file: int) -> Dict[str, Any]:
    try:
        found = json.loads(os.pread(file, _MAX_BYTES, 0).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_running(found: Dict[str, Any]) -> bool:
    """Whether the process that a lock file names runs, and is no later one with the same number."""
    return bool(found.get("pid")) and started_ticks(int(found["pid"])) == found.get("started_ticks")


def started_ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat, which tells a process from a later one with the same number; "" for none."""
    fields = read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _end_earlier(found: Dict[str, Any]) -> None:
    """End the program that held the lock for this same holder: its link is lost, and it doesn't know yet."""
    if is_running(found):
        with contextlib.suppress(OSError):
            os.kill(int(found["pid"]), signal.SIGTERM)


def _free(path: str, holder: Any) -> int:
    """Take the holder's own name away, so that nobody thinks that it died; the other program then ends."""
    if read_lock(path).get("holder") != holder:
        return 1
    try:
        os.unlink(path)
    except OSError:  # made by another login, in a sticky directory
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
    return 0
