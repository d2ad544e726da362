"""What a worker of the stand-in engine holds of its GPU: taken piece by piece, refused where torch would refuse it."""

import os
from typing import List

from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_memory import GIB
from opslib.rehearsal.standin.engine_plan import Plan, StageError

LOST = (  # torch 2.9 prints the advice on lines of its own
    "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    "Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html "
    "for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


class GpuShare:
    """The memory that rank `rank` holds of its GPU, in the ledger under the process's title."""

    def __init__(self, rank: int, plan: Plan, title: str) -> None:
        self._rank = rank
        self._plan = plan
        self._ledger = plan.ledger
        self._gpu = plan.gpus[rank]
        self._title = title
        self.held = 0

    def check_free(self) -> None:
        """vllm/v1/worker/utils.py request_memory: the snapshot is taken after NCCL."""
        if self._plan.flags.get("kv_cache_memory_bytes"):
            return
        total = self._ledger.total_bytes / GIB
        free = total - self._ledger.used_bytes(self._gpu) / GIB - self._plan.sums.context
        wanted = self._plan.sums.requested
        if free < wanted:
            message = (
                "Free memory on device cuda:%d (%s/%s GiB) on startup is less than desired GPU memory utilization "
                "(%s, %s GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
                % (self._rank, gib(free), gib(total), self._plan.flags["gpu_memory_utilization"], gib(wanted))
            )
            raise StageError(tb.traceback_lines(tb.WORKER_DEVICE, "ValueError: " + message), message)

    def take(self, amount_gib: float, frames: List[tb.Frame]) -> None:
        """Hold so much more, or fail as torch does."""
        self.set_held(self.held + int(amount_gib * GIB), frames)

    def set_held(self, held: int, frames: List[tb.Frame]) -> None:
        """Hold `held` bytes in all; raises StageError where the GPU has not got them, or is gone."""
        if self._ledger.is_lost(self._gpu):
            raise StageError(tb.traceback_lines(frames, LOST), LOST.partition(": ")[2].split("\n")[0])
        extra = (held - self.held) / GIB
        if extra > 0 and extra > self.free_gib():
            error = self.out_of_memory(min(extra, 1.13))
            raise StageError(tb.traceback_lines(frames, error), error.partition(": ")[2])
        self.held = held
        self._ledger.hold({self._gpu: held}, self._title)

    def free_gib(self) -> float:
        """What is free on this GPU now."""
        ledger = self._ledger
        return (ledger.total_bytes - self.held - ledger.used_bytes(self._gpu, but_pid=os.getpid())) / GIB

    def out_of_memory(self, piece_gib: float) -> str:
        """PyTorch's sentence."""
        total, context = self._ledger.total_bytes / GIB, self._plan.sums.context
        held = self.held / GIB
        allocated = max(0.0, held - context - 0.62)
        return (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %.2f GiB "
            "of which %.2f GiB is free. Including non-PyTorch memory, this process has %.2f GiB memory in use. Of the "
            "allocated memory %.2f GiB is allocated by PyTorch, with %.2f GiB allocated in private pools (e.g., CUDA "
            "Graphs), and 634.52 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
            "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
            "documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
            % (size(piece_gib), self._rank, total, self.free_gib(), held, allocated, self._plan.sums.graphs)
        )


def gib(amount: float) -> str:
    """Two digits without trailing zeros (vllm/utils/mem_utils.py format_gib)."""
    return str(round(amount, 2))


def size(amount_gib: float) -> str:
    """`2.29 GiB` or `298.00 MiB`, as PyTorch writes sizes."""
    return "%.2f GiB" % amount_gib if amount_gib >= 1 else "%.2f MiB" % (amount_gib * 1024)
