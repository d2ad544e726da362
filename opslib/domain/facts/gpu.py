"""What nvidia-smi says: the GPUs, their memory, and who holds it."""

from collections.abc import Iterable, Iterator, Sequence

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

MIB = 2**20


class Gpu(Value):
    """One GPU: what it is, and how much of its memory is used and free."""

    index: int
    name: str
    uuid: str
    memory_total_bytes: int
    memory_used_bytes: int
    memory_free_bytes: int
    driver_version: str

    @property
    def memory_usable_bytes(self) -> int:
        """What CUDA can hand out: used plus free; the driver's own reserve is in the total only."""
        return self.memory_used_bytes + self.memory_free_bytes


class GpuProcess(Value):
    """A process that holds memory of a GPU; None where the driver doesn't say how much."""

    gpu_uuid: str
    pid: int
    name: str
    memory_used_bytes: int | None


def gpu_memory_command() -> tuple[str, ...]:
    """Asks which GPUs there are (index, name, uuid, driver) and how much memory each has, used and free, in MiB."""
    fields = "index,name,uuid,memory.total,memory.used,memory.free,driver_version"
    return ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")


def gpu_watch_command(interval_ms: int = 2000) -> tuple[str, ...]:
    """Asks the same and the utilization in percent, again and again, by one process that stays."""
    fields = "index,utilization.gpu,name,uuid,memory.total,memory.used,memory.free,driver_version"
    return ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--loop-ms={interval_ms}")


def parse_gpu_watch(text: str) -> tuple[tuple[Gpu, ...], tuple[int, ...]]:
    """Reads one answer to `gpu_watch_command`: the GPUs and how busy each is, 0 where it doesn't say.

    Raises UnexpectedAnswer for a row that can't be read.
    """
    rows = sorted(_rows(text, 8), key=lambda row: _number(row[0], row))
    busy = tuple(int(row[1]) if row[1].isdecimal() else 0 for row in rows)
    return tuple(_gpu([row[0], *row[2:]]) for row in rows), busy


def parse_gpu_memory(text: str) -> tuple[Gpu, ...]:
    """Reads the answer to `gpu_memory_command`, in the order of the indices.

    Raises UnexpectedAnswer for a row that can't be read, or a GPU without memory figures of its own (unified memory).
    """
    return tuple(sorted((_gpu(row) for row in _rows(text, 7)), key=lambda gpu: gpu.index))


def gpu_processes_command() -> tuple[str, ...]:
    """Asks which compute processes hold GPU memory, and how much in MiB, one row per process and GPU."""
    return ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")


def parse_gpu_processes(text: str) -> tuple[GpuProcess, ...]:
    """Reads the answer to `gpu_processes_command`; no line means that nobody holds anything."""
    return tuple(_process(row) for row in _rows(text, 4))


def _rows(text: str, n_fields: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("No devices"):
            continue
        row = [field.strip() for field in line.split(",", n_fields - 1)]  # nvidia-smi quotes nothing: names come last
        if len(row) != n_fields:
            raise UnexpectedAnswer(f"nvidia-smi answered a row of {len(row)} fields, not {n_fields}: {line!r}")
        yield row


def _gpu(row: list[str]) -> Gpu:
    index, name, uuid, total, used, free, driver_version = row
    return Gpu(
        index=_number(index, row),
        name=name,
        uuid=uuid,
        memory_total_bytes=_number(total, row) * MIB,
        memory_used_bytes=_number(used, row) * MIB,
        memory_free_bytes=_number(free, row) * MIB,
        driver_version=driver_version,
    )


def _process(row: list[str]) -> GpuProcess:
    gpu_uuid, pid, used, name = row
    held = None if used.startswith("[") else _number(used, row) * MIB
    return GpuProcess(gpu_uuid=gpu_uuid, pid=_number(pid, row), name=name, memory_used_bytes=held)


def _number(text: str, row: list[str]) -> int:
    if not text.isdecimal():
        raise UnexpectedAnswer(f"nvidia-smi answered {text!r} where a number belongs: {row!r}")
    return int(text)


def held_by_index(gpus: Sequence[Gpu], processes: Iterable[GpuProcess]) -> dict[int, int]:
    """Bytes that the processes hold of each GPU, by its index; one that nvidia-smi gives no figure for counts as 0."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    held: dict[int, int] = {}
    for process in processes:
        if process.gpu_uuid in index:
            at = index[process.gpu_uuid]
            held[at] = held.get(at, 0) + (process.memory_used_bytes or 0)
    return held
