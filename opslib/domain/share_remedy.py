"""The largest share of a GPU that leaves room for what failed beside the budget: CUDA graphs, load, other programs."""

import math

from opslib.domain.engine_figures import EngineFigures
from opslib.domain.memory_remedy import Remedy

_GIB = 2**30
_LEAST = 0.05  # a smaller share serves nothing
_GRAPHS_GIB = 4.0  # more than the graphs of large models were seen to take; the log tells no sum before they are done
_MARGIN_GIB = 0.5


def propose_share_remedy(cause: str, share: float, figures: EngineFigures, *, gpu_total_bytes: int) -> Remedy | None:
    """A smaller --gpu-memory-utilization for a cause of the catalogue, None where the figures say nothing.

    `share` is the one that failed. Of CUDA graphs the whole is unknown until they are captured: room for what was asked
    and for the rest of the largest graphs seen is left.
    """
    total_gib = gpu_total_bytes / _GIB
    if cause == "gpu-memory/free-below-budget" and figures.free_below_budget:
        free_gib = figures.free_below_budget.free_bytes / _GIB
        reason = f"{free_gib:.2f} of {total_gib:.2f} GiB were free at the start"
        return _remedy(cause, share, (free_gib - _MARGIN_GIB) / total_gib, reason, total_gib)
    if cause in {"gpu-memory/cuda-graphs", "gpu-memory/while-serving"} and figures.out_of_memory:
        oom = figures.out_of_memory
        asked_gib, free_gib = oom.tried_bytes / _GIB, oom.free_bytes / _GIB
        more_gib = max(asked_gib - free_gib, 0.0) + (_GRAPHS_GIB if cause.endswith("cuda-graphs") else 2 * asked_gib)
        reason = f"{asked_gib:.2f} GiB were asked and {free_gib:.2f} free; {more_gib:.2f} GiB more stay outside"
        return _remedy(cause, share, share - more_gib / total_gib, reason, total_gib)
    return None


def _remedy(cause: str, share: float, wanted: float, reason: str, total_gib: float) -> Remedy | None:
    value = math.floor(wanted * 100) / 100
    if not _LEAST <= value < share:
        return None
    return Remedy(
        cause=cause,
        flag="--gpu-memory-utilization",
        value=f"{value:.2f}",
        reason=f"{reason}: {share:.2f} of the GPU becomes {value:.2f}",
        cost=f"{(share - value) * total_gib:.2f} GiB less KV cache per GPU",
        check="the unit stays in one invocation until /health answers",
    )
