"""What a launch's journal says about GPU memory, as the planner takes it."""

from opslib.domain.engine_defaults import GIB
from opslib.domain.engine_figures import EngineFigures
from opslib.domain.memory_situation import ObservedFigures


def observe_launch(figures: EngineFigures) -> ObservedFigures:
    """The figures of one start, tied to the flags it ran with; None stays None.

    What was free counts only for a failure of the sampler's warm-up: earlier failures leave other terms open.
    """
    failure = figures.out_of_memory if figures.dummy_requests else None
    arguments = figures.arguments
    sequences, share = figures.dummy_requests or arguments.get("max_num_seqs"), arguments.get("gpu_memory_utilization")
    return ObservedFigures(
        weights_gib=_gib(figures.weights_bytes),
        available_kv_gib=_gib(figures.available_kv_cache_bytes),
        graphs_gib=_gib(figures.cuda_graphs_bytes),
        free_at_failure_gib=_gib(failure.free_bytes) if failure else None,
        total_gib=_gib(failure.total_bytes) if failure else None,
        tried_to_allocate_gib=_gib(failure.tried_bytes) if failure else None,
        max_num_seqs=sequences if isinstance(sequences, int) else None,
        gpu_memory_utilization=float(share) if isinstance(share, int | float) else None,
    )


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / GIB, 3)
