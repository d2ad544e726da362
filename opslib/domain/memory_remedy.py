"""Remedies that are solved for: the smallest change of one flag with which the sums come out."""

from opslib.domain import kv_cache
from opslib.domain.engine_defaults import GIB
from opslib.domain.memory import add_up, largest_fitting, model_len, surely_fits
from opslib.domain.memory_terms import ObservedFigures, Situation, WeightBytes, sampler_row
from opslib.domain.model_spec import ModelSpec
from opslib.domain.states import Value
from opslib.domain.vllm_flags import ServeFlags

_LENGTH_STEP = 1024
_UTILIZATIONS = tuple(percent / 100 for percent in range(50, 98))


class Remedy(Value):
    """One flag to change: why (the sums, in GiB), what it costs, and how to see that it helped."""

    cause: str
    flag: str
    value: str
    reason: str
    cost: str
    check: str


def propose_memory_remedy(
    cause: str,
    model: ModelSpec,
    flags: ServeFlags,
    *,
    weights: WeightBytes,
    gpu_total_bytes: int,
    engine_version: str = "",
    observed: ObservedFigures | None = None,
) -> Remedy | None:
    """The smallest change that surely fits for a cause of the catalogue; None where no single flag helps."""
    solve = _SOLVERS.get(cause)
    if solve is None:
        return None
    situation = Situation.of(
        model, flags, weights, gpu_total_bytes=gpu_total_bytes, engine_version=engine_version, observed=observed
    )
    return solve(situation)


def _fewer_sequences(situation: Situation) -> Remedy | None:
    now = situation.flags.max_num_seqs
    value = largest_fitting(situation, below=min(now, situation.observed_max_num_seqs))
    if value is None:
        return None
    before, after = add_up(situation), add_up(situation.with_max_num_seqs(value))
    factor = sampler_row(situation.version)["u"][1]
    return Remedy(
        cause="gpu-memory/sampler-warmup",
        flag="--max-num-seqs",
        value=str(value),
        reason=(
            f"the sampler's second warm-up with {now} dummy requests needs {before.sampler.expected:.2f} GiB "
            f"({factor:g} x {now} x {situation.model.vocab_size} x 4 bytes), {before.left.expected:.2f} GiB are left; "
            f"with {value} it needs {after.sampler.expected:.2f} GiB and {after.left.expected:.2f} GiB are left"
        ),
        cost=(
            f"at most {value} requests run at once instead of {now}; the KV cache goes from "
            f"{before.kv_cache.expected:.2f} to {after.kv_cache.expected:.2f} GiB per GPU"
        ),
        check="the unit stays in one invocation until /health answers",
    )


def _shorter_requests(situation: Situation) -> Remedy | None:
    seen, length = situation.observed.available_kv_gib, model_len(situation)
    available = add_up(situation).kv_cache.low if seen is None else seen
    fits = kv_cache.largest_request(situation.model, situation.flags, available * GIB) // _LENGTH_STEP * _LENGTH_STEP
    if not length or not 0 < fits < length:
        return None
    needed, left = (kv_cache.request_bytes(situation.model, situation.flags, n) / GIB for n in (length, fits))
    return Remedy(
        cause="gpu-memory/kv-cache-below-max-model-len",
        flag="--max-model-len",
        value=str(fits),
        reason=(
            f"one request of {length} tokens needs {needed:.2f} GiB of KV cache and {available:.2f} GiB are available; "
            f"{fits} tokens need {left:.2f} GiB"
        ),
        cost=f"requests (prompt and answer together) are limited to {fits} tokens instead of {length}",
        check=f'the journal says "Maximum concurrency for {fits:,} tokens per request: 1.00x" or more',
    )


def _more_cache(situation: Situation) -> Remedy | None:
    """A larger share of the GPU where that is enough; otherwise fewer sequences, if the sampler holds the peak."""
    now = situation.flags.gpu_memory_utilization
    seen = situation.observed.model_copy(update={"gpu_memory_utilization": now})
    for value in _UTILIZATIONS:
        flags = situation.flags.with_value("--gpu-memory-utilization", value, "what-if")
        raised = situation.model_copy(update={"flags": flags, "observed": seen})
        if value > now and surely_fits(raised):
            return _share(situation, raised, value)
    remedy = _fewer_sequences(situation)
    return remedy and remedy.model_copy(update={"cause": "gpu-memory/no-kv-cache-memory"})


def _share(before: Situation, after: Situation, value: float) -> Remedy:
    old, new = add_up(before), add_up(after)
    return Remedy(
        cause="gpu-memory/no-kv-cache-memory",
        flag="--gpu-memory-utilization",
        value=f"{value:.2f}",
        reason=(
            f"of a budget of {before.budget_gib:.2f} GiB weights take {old.weights.expected:.2f} and the profile "
            f"{old.peak.expected:.2f} GiB, so {old.kv_cache.expected:.2f} GiB remain; of {after.budget_gib:.2f} GiB "
            f"{new.kv_cache.expected:.2f} GiB remain, one request needs {new.request_gib:.2f}"
        ),
        cost=f"{after.budget_gib - before.budget_gib:.2f} GiB less per GPU for anything beside the engine",
        check='the journal says "Available KV cache memory" with more than one request needs',
    )


_SOLVERS = {
    "gpu-memory/sampler-warmup": _fewer_sequences,
    "gpu-memory/kv-cache-below-max-model-len": _shorter_requests,
    "gpu-memory/no-kv-cache-memory": _more_cache,
}
