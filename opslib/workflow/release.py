"""Whether a stopped unit has really given its GPU memory back: asked until nobody of it holds any."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from opslib.domain.facts.gpu import MIB, Gpu, GpuProcess, held_by_index
from opslib.domain.facts.processes import descends_from, parse_process_parents, process_parents_command
from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import Host
from opslib.domain.orphan import read_cgroup_unit
from opslib.domain.states import CheckResult, State, Value
from opslib.errors import OpslibError
from opslib.workflow.facts import gather_gpu_processes, gather_gpus, gather_unit_status

_INTERVAL_S = 0.5
_SLACK_BYTES = 512 * MIB  # what others may have taken meanwhile
_NAME = "gpu-memory-released"


class GpuHold(Value):
    """What a unit's processes hold of the GPUs: process names by id, bytes by GPU index, and what is used in all."""

    names: Mapping[int, str] = {}
    held_bytes: Mapping[int, int] = {}
    used_bytes: Mapping[int, int] = {}


def gather_hold(host: Host, unit: str) -> GpuHold:
    """What the unit holds now, by its process tree and control group; nothing where there is no GPU."""
    gpus = gather_gpus(host)
    if not gpus:
        return GpuHold()
    main_pid = gather_unit_status(host, unit).main_pid
    parents = parse_process_parents(host.run(process_parents_command()).text)
    own = [
        process
        for process in gather_gpu_processes(host)
        if (main_pid and descends_from(process.pid, main_pid, parents)) or _is_in(host, process.pid, unit)
    ]
    return GpuHold(
        names={process.pid: process.name for process in own},
        held_bytes=held_by_index(gpus, own),
        used_bytes={gpu.index: gpu.memory_used_bytes for gpu in gpus},
    )


def wait_released(
    host: Host, hold: GpuHold, *, deadline_s: float = 60.0, pause: Callable[[float], None] = time.sleep
) -> CheckResult:
    """Asks until none of the processes holds GPU memory and each GPU has it free again; critical after the deadline."""
    if not hold.names:
        return CheckResult(name=_NAME, state=State.OK, summary="it held no GPU memory that nvidia-smi names")
    end_at = time.monotonic() + deadline_s
    while True:
        left = [process for process in gather_gpu_processes(host) if process.pid in hold.names]
        short = {} if left else _short(hold, gather_gpus(host))
        if not left and not short:
            sizes = ", ".join(f"GPU {index}: {size / 2**30:.1f} GiB" for index, size in sorted(hold.held_bytes.items()))
            return CheckResult(name=_NAME, state=State.OK, summary=f"released, asked again ({sizes})")
        if time.monotonic() >= end_at:
            return _not_released(left, short, deadline_s)
        pause(_INTERVAL_S)


def _not_released(left: list[GpuProcess], short: Mapping[int, int], deadline_s: float) -> CheckResult:
    who = tuple(f"{process.name} (pid {process.pid}) still holds memory of {process.gpu_uuid}" for process in left)
    rest = tuple(f"GPU {index} still has {size / 2**30:.1f} GiB more in use" for index, size in short.items())
    summary = f"not released after {deadline_s:.0f} s: {(who or rest)[0]}"
    return CheckResult(name=_NAME, state=State.CRITICAL, summary=summary, evidence=(*who, *rest))


def _short(hold: GpuHold, gpus: tuple[Gpu, ...]) -> dict[int, int]:
    """GPUs on which more is used than what others used before: {index: bytes}."""
    more = {
        gpu.index: gpu.memory_used_bytes - (hold.used_bytes.get(gpu.index, 0) - hold.held_bytes[gpu.index])
        for gpu in gpus
        if gpu.index in hold.held_bytes
    }
    return {index: size for index, size in more.items() if size > min(_SLACK_BYTES, hold.held_bytes[index] // 2)}


def _is_in(host: Host, pid: int, unit: str) -> bool:
    with suppress(OpslibError):
        content = host.read_file(f"/proc/{pid}/cgroup") or b""
        return read_cgroup_unit(content.decode("utf-8", "replace")) == unit_name(unit)
    return False
