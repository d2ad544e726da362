"""Whether the process that writes a record is still there."""

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

_SLACK_S = 5.0  # a run is noted a moment after its process began; clocks are read in whole ticks


def is_alive(controller: str, process_id: int | None, seen_at: datetime | None = None) -> bool:
    """Whether a run's process may still be there; that of another machine can't be asked and counts as alive.

    A process of that number that began after the run was `seen_at` work (a reboot, a number used anew) is another.
    """
    if controller and controller != socket.gethostname():
        return True
    if not process_id:
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _fields(process_id)
    if fields[:1] == ["Z"]:  # ended, and nobody has asked for its exit status: a container's first process may never
        return False
    began = _began_at(fields)
    return not (began and seen_at and (began - seen_at).total_seconds() > _SLACK_S)


def _fields(process_id: int) -> list[str]:
    """What proc(5) says of a process from its state on; nothing where there is no /proc."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return []


def _began_at(fields: list[str]) -> datetime | None:
    """When a process began; None where there is no /proc."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        ticks = int(fields[19])
        lines = Path("/proc/stat").read_text().splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return datetime.fromtimestamp(booted + ticks / os.sysconf("SC_CLK_TCK"), UTC)
    return None
