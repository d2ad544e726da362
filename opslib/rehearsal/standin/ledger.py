"""Who holds how much memory of which GPU: a directory with one JSON file per process, and the stand-ins' settings."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional

GIB = 1024**3


def load_settings() -> Dict[str, Any]:
    """`rehearsal.json` from $OPSLIB_STANDIN, else from `../share` beside the real script file."""
    home = os.environ.get("OPSLIB_STANDIN")
    if not home:
        home = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "..", "share")
    with open(os.path.join(home, "rehearsal.json"), encoding="utf-8") as file:
        settings: Dict[str, Any] = json.load(file)
    return settings


class Ledger:
    """The memory of all GPUs; a dead process's share is released `release_lag_s` after its last sign of life."""

    def __init__(self, directory: str, gpus: Dict[str, Any]) -> None:
        self.directory = directory
        self.count = int(gpus["count"])
        self.total_bytes = int(float(gpus["total_gib"]) * GIB)
        self.release_lag_s = float(gpus.get("release_lag_s", 1.0))
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            os.chmod(directory, 0o1777)  # noqa: S103 - several users' processes write here

    def hold(self, used_bytes: Dict[int, int], name: str) -> None:
        """Say what this process holds, per GPU index, replacing what it said before."""
        pid = os.getpid()
        entry = {
            "pid": pid,
            "started": start_time(pid),
            "name": name,
            "used_bytes": {str(gpu): used for gpu, used in used_bytes.items()},
        }
        path = self._path(pid)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(path + ".new", path)

    def beat(self) -> None:
        """Show that this process still lives."""
        with contextlib.suppress(OSError):
            os.utime(self._path(os.getpid()))

    def release(self) -> None:
        """Give everything back at once: an orderly end."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(os.getpid()))

    def entries(self) -> List[Dict[str, Any]]:
        """All holders; `is_alive` False where the process ended and its memory is just being released."""
        found = []
        for file_name in sorted(os.listdir(self.directory)):
            if file_name.endswith(".json"):
                entry = self._read(os.path.join(self.directory, file_name))
                if entry is not None:
                    found.append(entry)
        return found

    def used_bytes(self, gpu: int, *, but_pid: int = 0) -> int:
        """Bytes held on one GPU by all processes but `but_pid`."""
        return sum(int(e["used_bytes"].get(str(gpu), 0)) for e in self.entries() if e["pid"] != but_pid)

    def is_lost(self, gpu: int) -> bool:
        """Whether the GPU has fallen off the bus: a file `lost-N` says so."""
        return os.path.exists(os.path.join(self.directory, "lost-%d" % gpu))

    def _path(self, pid: int) -> str:
        return os.path.join(self.directory, "%d.json" % pid)

    def _read(self, path: str) -> Optional[Dict[str, Any]]:
        try:
            with open(path, encoding="utf-8") as file:
                entry: Dict[str, Any] = json.load(file)
            beat_at = os.stat(path).st_mtime
        except (OSError, ValueError, RecursionError):
            return None
        started = start_time(int(entry["pid"]))
        entry["is_alive"] = bool(started) and started == entry["started"]
        if not entry["is_alive"] and time.time() > beat_at + self.release_lag_s:
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        return entry


def start_time(pid: int) -> str:
    """The kernel's start time of a living process (so that a reused pid is not taken for it), else ''."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def open_ledger(settings: Dict[str, Any]) -> Ledger:
    """The ledger that the settings name."""
    return Ledger(settings["ledger_dir"], settings["gpus"])
