"""Does a start that says nothing still move? Told from what its processes read, compute and hold."""

from datetime import datetime

from opslib.domain.facts.gpu import Gpu
from opslib.domain.states import Value

_BUSY_CORES = 0.05  # less is a waiting process's housekeeping
_READ_BYTES_PER_S = 1 << 20
_HELD_BYTES = 16 << 20  # GPU memory that changed by less is another program's noise
GIB = 2**30


class Movement(Value):
    """The last rates of a unit's processes, and when any of them last moved."""

    at: datetime | None = None
    cpu_s: float | None = None
    read_bytes: int | None = None
    cores: float | None = None
    read_bytes_per_s: float | None = None
    utilization_percent: int | None = None  # of the busiest GPU
    held_bytes: int | None = None
    moved_at: datetime | None = None

    def with_usage(self, at: datetime, cpu_s: float | None, read_bytes: int | None) -> "Movement":
        """After one more look at what the processes have used so far."""
        if cpu_s is None:
            return self
        values: dict[str, object] = {"at": at, "cpu_s": cpu_s, "read_bytes": read_bytes}
        past_s = (at - self.at).total_seconds() if self.at else 0.0
        if past_s > 0 and self.cpu_s is not None and cpu_s >= self.cpu_s:  # less: other processes, another start
            cores = (cpu_s - self.cpu_s) / past_s
            rate = None if None in (read_bytes, self.read_bytes) else max(0, read_bytes - self.read_bytes) / past_s  # type: ignore[operator]
            values |= {"cores": cores, "read_bytes_per_s": rate}
            if cores > _BUSY_CORES or (rate or 0) > _READ_BYTES_PER_S:
                values["moved_at"] = at
        return self.model_copy(update=values)

    def with_gpus(self, at: datetime, gpus: tuple[Gpu, ...], utilization: tuple[int, ...]) -> "Movement":
        """After one more look at the GPUs."""
        held = sum(gpu.memory_used_bytes for gpu in gpus)
        is_other = self.held_bytes is not None and abs(held - self.held_bytes) > _HELD_BYTES
        busiest = max(utilization, default=None)
        values: dict[str, object] = {"held_bytes": held, "utilization_percent": busiest}
        if is_other or busiest:
            values["moved_at"] = at
        return self.model_copy(update=values)

    def still_s(self, now: datetime, since: datetime) -> float:
        """Seconds without any movement, counted from `since` at the earliest."""
        return (now - max(self.moved_at or since, since)).total_seconds()

    @property
    def words(self) -> str:
        """What moves, for a reader; "" where that is not known.

        >>> Movement(cores=1.94, read_bytes_per_s=1.5e9).words
        'CPU 1.9 cores, disk 1.40 GiB/s'
        """
        said = [f"CPU {self.cores:.1f} cores"] if self.cores is not None else []
        said += [f"disk {self.read_bytes_per_s / GIB:.2f} GiB/s"] if self.read_bytes_per_s is not None else []
        said += [f"GPU {self.utilization_percent} %"] if self.utilization_percent is not None else []
        return ", ".join(said)
