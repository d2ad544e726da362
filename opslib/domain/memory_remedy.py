"""Remedies that are solved for: the smallest change of one flag with which the sums come out, and what it costs."""

from opslib.domain.memory_checks import above_limit, impossible
from opslib.domain.memory_situation import Calibration, ObservedFigures, Situation
from opslib.domain.memory_solvers import SOLVERS, Change, Remedy
from opslib.domain.memory_weights import WeightBytes
from opslib.domain.model_spec import ModelSpec
from opslib.domain.vllm_flags import ServeFlags

__all__ = ["Remedy", "limit_remedy", "parallel_remedies", "remedies_of", "solve_remedies"]


def solve_remedies(situation: Situation, cause: str, *, n_gpus: int | None = None) -> tuple[Remedy, ...]:
    """All changes of one flag that answer a cause, smallest first; with at most `n_gpus` GPUs (None: as now)."""
    limit = n_gpus or situation.flags.n_gpus
    changes = [change for solver in SOLVERS.get(cause, ()) for change in solver(situation, limit)]
    return tuple(change.remedy(cause) for change in changes)


def parallel_remedies(model: ModelSpec, flags: ServeFlags, n_gpus: int | None = None) -> tuple[Remedy, ...]:
    """The nearest --tensor-parallel-size that the model's heads allow; empty where the present one is allowed."""
    refusal = impossible(model, flags)
    if refusal is None:
        return ()
    limit, now = n_gpus or flags.tensor_parallel_size, flags.tensor_parallel_size
    allowed = [
        size
        for size in range(1, limit + 1)
        if not impossible(model, flags.with_value("--tensor-parallel-size", size, ""))
    ]
    if not allowed:
        return ()
    value = min(allowed, key=lambda size: (abs(size - now), -size))
    cost = f"{value} GPUs hold the weights instead of {now}"
    change = Change("--tensor-parallel-size", value, refusal[1], cost, "the engine goes on to load")
    return (change.remedy(refusal[0]),)


def limit_remedy(model: ModelSpec, flags: ServeFlags) -> tuple[Remedy, ...]:
    """The model's own limit where --max-model-len is above it."""
    above, limit = above_limit(model, flags), model.max_position_embeddings
    if above is None or limit is None:
        return ()
    cost = f"requests are limited to {limit} tokens instead of {flags.max_model_len}"
    change = Change("--max-model-len", limit, above, cost, "the engine goes on to load")
    return (change.remedy("model/max-model-len-above-limit"),)


def remedies_of(
    cause: str | None,
    model: ModelSpec,
    flags: ServeFlags,
    *,
    weights: WeightBytes | None,
    gpu_total_bytes: int,
    engine_version: str = "",
    gpu_name: str = "",
    free_gib: float | None = None,
    calibration: Calibration | None = None,
    observed: ObservedFigures | None = None,
    n_gpus: int | None = None,
) -> tuple[Remedy, ...]:
    """Every change of one flag that answers a plan's cause, smallest first; empty for a plan that fits."""
    if cause is None:
        return ()
    if cause == "model/parallel-size-not-divisible":
        return parallel_remedies(model, flags, n_gpus)
    if cause == "model/max-model-len-above-limit":
        return limit_remedy(model, flags)
    situation = Situation.of(
        model,
        flags,
        weights,
        gpu_total_bytes=gpu_total_bytes,
        engine_version=engine_version,
        observed=observed,
        gpu_name=gpu_name,
        free_gib=free_gib,
        calibration=calibration,
    )
    return solve_remedies(situation, cause, n_gpus=n_gpus)
