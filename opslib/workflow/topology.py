"""What a host has for an engine: wiring of its GPUs, who holds their memory, RAM, shared memory and disk."""

import re
from collections.abc import Iterator, Mapping, Sequence

from opslib.domain.facts.gpu import Gpu, GpuProcess
from opslib.domain.facts.topology import Topology, parse_topology, topology_command
from opslib.domain.host import Host
from opslib.domain.states import Value
from opslib.workflow.facts import gather_gpu_processes, gather_gpus

GIB = 2**30
_SHARED = "/dev/shm"  # noqa: S108 - the host's shared memory is what is asked about
_SHARED_BYTES_PER_RANK = GIB  # NCCL and the workers' message queues


class MemoryHolder(Value):
    """A process that holds memory of a GPU: whose it is and how long it has run."""

    gpu_index: int
    pid: int
    name: str
    memory_used_bytes: int | None
    user: str = ""
    unit: str = ""  # with its suffix, as ps says it
    age_s: int | None = None

    @property
    def sentence(self) -> str:
        """Who holds how much, in one line."""
        size = "memory" if self.memory_used_bytes is None else f"{self.memory_used_bytes / GIB:.1f} GiB"
        age = "" if self.age_s is None else f", for {self.age_s // 3600}h{self.age_s % 3600 // 60:02d}m"
        owner = ", ".join(part for part in (self.unit, self.user) if part)
        return f"GPU {self.gpu_index}: PID {self.pid} ({self.name}{', ' if owner else ''}{owner}) holds {size}{age}"


class HostRoom(Value):
    """What else an engine needs of a host, in bytes; None where it could not be read."""

    memory_available_bytes: int | None = None
    shared_memory_bytes: int | None = None
    disk_free_bytes: Mapping[str, int] = {}
    disk_size_bytes: Mapping[str, int] = {}


class HostGpus(Value):
    """A host's GPUs with their wiring and the processes on them."""

    gpus: tuple[Gpu, ...] = ()
    topology: Topology = Topology()
    holders: tuple[MemoryHolder, ...] = ()

    def propose(self, n_gpus: int, needed_bytes: int = 0) -> tuple[int, ...]:
        """Which GPUs to use: free ones of one NUMA node before ones that span two."""
        free = {gpu.index: gpu.memory_free_bytes for gpu in self.gpus}
        return self.topology.choose(n_gpus, free, needed_bytes)

    def units_beside(self, gpu: int, own: Sequence[str]) -> tuple[str, ...]:
        """The other services that hold memory of a GPU; `own` are units that will not run then."""
        names = {f"{unit.removesuffix('.service')}.service" for unit in own if unit}
        held = {holder.unit for holder in self.holders if holder.gpu_index == gpu and holder.unit.endswith(".service")}
        return tuple(sorted(unit for unit in held - names if not unit.startswith("user@")))

    def free_beside(self, gpus: Sequence[int], own: Sequence[str]) -> float | None:
        """GiB that other units leave free on the fullest of some GPUs; None where there is no other unit on them."""
        shared = [gpu for gpu in self.gpus if gpu.index in gpus and self.units_beside(gpu.index, own)]
        left = [gpu.memory_usable_bytes - self._held_beside(gpu.index, own) for gpu in shared]
        return round(min(left) / GIB, 3) if left else None

    def _held_beside(self, gpu: int, own: Sequence[str]) -> int:
        units = self.units_beside(gpu, own)
        held = (holder.memory_used_bytes for holder in self.holders if holder.gpu_index == gpu and holder.unit in units)
        return sum(size or 0 for size in held)

    def beside(self, gpus: Sequence[int], own: Sequence[str]) -> Iterator[str]:
        """Each GPU that another unit is on, and who: all units on it have one budget."""
        for gpu in self.gpus:
            others = self.units_beside(gpu.index, own) if gpu.index in gpus else ()
            if others:
                free = (gpu.memory_usable_bytes - self._held_beside(gpu.index, own)) / GIB
                yield f"GPU {gpu.index} is shared with {', '.join(others)}, which leaves {free:.1f} GiB of its budget"

    def wiring_of(self, gpus: Sequence[int]) -> str:
        """How some GPUs are wired, in words."""
        link, nodes = self.topology.worst_link(gpus), sorted(self.topology.nodes_of(gpus))
        by = "NVLink" if link.startswith("NV") else f"PCIe ({link})" if link else "links not known"
        where = f", NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}" if nodes else ""
        return f"{by}{where}" if len(gpus) > 1 else where.removeprefix(", ")


def gather_topology(host: Host) -> Topology:
    """How the GPUs are wired; a topology that knows nothing where nvidia-smi doesn't say."""
    result = host.run(topology_command())
    return parse_topology(result.text) if result.is_success else Topology()


def gather_host_gpus(host: Host) -> HostGpus:
    """The GPUs, their wiring, and who holds their memory; empty on a host without any."""
    gpus = gather_gpus(host)
    if not gpus:
        return HostGpus()
    return HostGpus(gpus=gpus, topology=gather_topology(host), holders=gather_holders(host, gpus))


def gather_holders(host: Host, gpus: Sequence[Gpu]) -> tuple[MemoryHolder, ...]:
    """The compute processes on the GPUs with user, unit and age; nothing is asked of ps where there are none."""
    processes = gather_gpu_processes(host)
    if not processes:
        return ()
    pids = ",".join(str(pid) for pid in sorted({process.pid for process in processes}))
    result = host.run(("ps", "-o", "pid=,etimes=,user:32=,unit:96=", "-p", pids))
    told = {int(row[0]): row[1:] for row in map(str.split, result.text.splitlines()) if row and row[0].isdecimal()}
    index = {gpu.uuid: gpu.index for gpu in gpus}
    return tuple(_holder(process, index, told.get(process.pid, [])) for process in processes)


def _holder(process: GpuProcess, index: Mapping[str, int], told: Sequence[str]) -> MemoryHolder:
    age, user, unit = (*told, "", "", "")[:3]
    return MemoryHolder(
        gpu_index=index.get(process.gpu_uuid, -1),
        pid=process.pid,
        name=process.name.rpartition("/")[2],
        memory_used_bytes=process.memory_used_bytes,
        user=user,
        unit="" if unit == "-" else unit,
        age_s=int(age) if age.isdecimal() else None,
    )


def gather_room(host: Host, *paths: str) -> HostRoom:
    """Available RAM, the size of /dev/shm, and what is free on the file systems of `paths`."""
    memory = host.read_file("/proc/meminfo") or b""
    found = re.search(rb"MemAvailable:\s+(\d+) kB", memory)
    asked = (_SHARED, *paths)
    free: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for path in asked:
        rows = host.run(("df", "--block-size=1", "--output=size,avail", path)).text.splitlines()
        words = rows[-1].split() if len(rows) > 1 else []
        if len(words) == 2 and all(word.isdecimal() for word in words):
            sizes[path], free[path] = int(words[0]), int(words[1])
    shared = free.pop(_SHARED, None)
    sizes.pop(_SHARED, None)
    return HostRoom(
        memory_available_bytes=int(found[1]) * 1024 if found else None,
        shared_memory_bytes=shared,
        disk_free_bytes=free,
        disk_size_bytes=sizes,
    )


def room_notes(room: HostRoom, *, n_ranks: int, offloaded_bytes: float = 0.0) -> tuple[str, ...]:
    """What the host lacks for so many ranks; empty where it has enough."""
    notes = []
    needed = _SHARED_BYTES_PER_RANK * n_ranks
    if n_ranks > 1 and room.shared_memory_bytes is not None and room.shared_memory_bytes < needed:
        notes.append(
            f"{_SHARED} has {room.shared_memory_bytes / GIB:.1f} GiB free; {n_ranks} ranks may need {needed / GIB:.0f}"
        )
    if room.memory_available_bytes is not None and room.memory_available_bytes < offloaded_bytes:
        notes.append(
            f"{room.memory_available_bytes / GIB:.1f} GiB of RAM are available, "
            f"--cpu-offload-gb asks for {offloaded_bytes / GIB:.1f}"
        )
    notes += [
        f"{path}: {free / GIB:.1f} GiB free for compile caches, 5 are wanted"
        for path, free in room.disk_free_bytes.items()
        if free < 5 * GIB
    ]
    return tuple(notes)
