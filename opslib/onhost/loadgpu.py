"""What the GPUs do while a load runs: one nvidia-smi that prints a row for each of them twice a second."""

import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

FIELDS = ("index", "memory.used", "utilization.gpu", "power.draw", "clocks.sm")
THROTTLE_FIELD = "clocks_throttle_reasons.active"
LOOP_MS = 500
MIB = 1 << 20
# nvml.h, nvmlClocksEventReasons: what holds the clocks down; idle (1) and a setting made by a person (2) do not count
THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


class GpuWatch:
    """Reads nvidia-smi's loop; a host without one has no samples."""

    def __init__(self, indices: Sequence[int] = ()) -> None:
        self._indices = [str(index) for index in indices]
        self._rows: List[Tuple[float, str]] = []
        self._process: "Optional[subprocess.Popen[str]]" = None
        self._is_over = False
        self._reading = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._reading.start()

    def stop(self) -> None:
        """Watch no more."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def samples(self, started_at: float, ended_at: float) -> List[Dict[str, Any]]:
        """The rows of that time, by the seconds since `started_at`."""
        rows = [(at, read_row(row)) for at, row in list(self._rows) if started_at <= at <= ended_at]
        return [{"at_s": round(at - started_at, 3), **row} for at, row in rows if row is not None]

    def _read(self) -> None:
        for fields in ((*FIELDS, THROTTLE_FIELD), FIELDS):  # a driver may not know the last one
            if self._is_over or self._rows:
                return
            try:
                self._process = subprocess.Popen(
                    vector(fields, self._indices),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    universal_newlines=True,
                )
            except OSError:
                return
            for row in self._process.stdout or ():
                if row[:1].isdigit():
                    self._rows.append((time.perf_counter(), row))


def vector(fields: Sequence[str], indices: Sequence[str]) -> List[str]:
    """The command that prints the fields of the GPUs (all without `indices`) until it is ended."""
    wanted = ["--id=" + ",".join(indices)] if indices else []
    style = ["--format=csv,noheader,nounits", "--loop-ms=%d" % LOOP_MS]
    return ["nvidia-smi", "--query-gpu=" + ",".join(fields), *style, *wanted]


def read_row(row: str) -> Optional[Dict[str, Any]]:
    """One row of the loop; a field that the GPU doesn't tell ([N/A]) is None.

    >>> read_row("0, 81000, 97, 610.5, [N/A], 0x0000000000000004")["throttle_reasons"]
    ['sw_power_cap']
    """
    index, *rest = (field.strip() for field in row.split(","))
    if not index.isdigit() or len(rest) < len(FIELDS) - 1:
        return None
    memory_mib, utilization, power, clock = (_number(field) for field in rest[:4])
    return {
        "index": int(index),
        "memory_used_bytes": None if memory_mib is None else int(memory_mib * MIB),
        "utilization_percent": utilization,
        "power_w": power,
        "sm_clock_mhz": clock,
        "throttle_reasons": _reasons(rest[4]) if len(rest) > 4 else [],
    }


def _number(field: str) -> Optional[float]:
    try:
        return float(field)
    except ValueError:
        return None


def _reasons(field: str) -> List[str]:
    try:
        bits = int(field, 16)
    except ValueError:
        return []
    return [name for bit, name in sorted(THROTTLE_REASONS.items()) if bits & bit]
