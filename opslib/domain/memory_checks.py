"""What must hold for a launch to succeed, in the order in which it would fail, each with its catalogue id."""

from collections.abc import Iterator
from typing import NamedTuple

from opslib.domain import memory_terms as terms
from opslib.domain.bands import Band, exactly
from opslib.domain.engine_defaults import GIB
from opslib.domain.memory_situation import CHOSEN, Situation
from opslib.domain.memory_sums import Sums, add_up
from opslib.domain.model_spec import ModelSpec
from opslib.domain.serve_flags import ServeFlags


class Check(NamedTuple):
    """One thing that must hold for a launch to succeed: it fails where its slack is negative."""

    cause: str
    slack: Band
    sentence: str


def checks_of(situation: Situation, sums: Sums) -> Iterator[Check]:
    """What must hold, in the order in which a launch would fail."""
    flags, context = situation.flags, terms.context(situation)
    total = exactly(situation.total_gib)
    if flags.kv_cache_memory_bytes is None and situation.is_free_checked:
        yield _free_check(situation)
    slack = total.minus(context + sums.weights)
    yield Check("gpu-memory/weights", slack, f"the weights need {sums.weights.expected:.2f} GiB per GPU")
    words = f"{sums.kv_cache.expected:.2f} GiB are left for the KV cache"
    yield Check("gpu-memory/no-kv-cache-memory", sums.kv_cache, words)
    need = f"one request of {situation.model_len} tokens needs {sums.request_gib:.2f} GiB of KV cache, {words}"
    below = "gpu-memory/kv-cache-below-max-model-len"
    length = flags.flags.get("--max-model-len")
    if length is None or length.origin != CHOSEN:
        yield Check(below, _cache_for_requests(situation, sums).shifted(-sums.request_gib), need)
    if situation.needs_state_blocks:
        yield _state_check(situation, sums)
    if situation.total_gib <= 0:
        return
    words = "the CUDA graphs have to fit beside weights and KV cache"
    if sums.graphs.high > 0:
        yield Check("gpu-memory/cuda-graphs", sums.left, words)
    if not situation.has_second_sampler_run:
        return
    words = (
        f"the sampler's second warm-up with {flags.max_num_seqs} dummy requests needs {sums.sampler.expected:.2f} GiB, "
        f"{sums.left.expected:.2f} GiB are left for it"
    )
    yield Check("gpu-memory/sampler-warmup", sums.slack, words)


def _free_check(situation: Situation) -> Check:
    """At start free memory must be at least the budget; what is free before the launch pays for the context too."""
    context, budget = terms.context(situation), situation.budget_gib
    if situation.free_gib is None:
        slack = exactly(situation.total_gib - budget).minus(context)
        words = f"the budget of {budget:.2f} GiB is more than what the CUDA context leaves free"
    else:
        free = situation.free_gib
        slack = Band(free - context.low - budget, free - budget, free - budget)
        words = f"the budget of {budget:.2f} GiB is more than the {free:.2f} GiB that are free"
    return Check("gpu-memory/free-below-budget", slack, words)


def _cache_for_requests(situation: Situation, sums: Sums) -> Band:
    """What requests can have of the cache: its memory, or the blocks that it was cut to."""
    if not situation.is_override_checked:
        return sums.kv_cache
    return exactly(sums.n_blocks * sums.pool.bytes_per_block / GIB)


def _state_check(situation: Situation, sums: Sums) -> Check:
    """Capture of whole decoding steps needs a block with a state for each sequence."""
    sequences, size = situation.flags.max_num_seqs, sums.pool.bytes_per_block / GIB
    words = f"{sequences} sequences need as many blocks for their states, the pool has {sums.n_blocks}"
    cache = sums.kv_cache if situation.fixed_blocks is None else exactly(sums.n_blocks * size)
    return Check("gpu-memory/cuda-graphs", cache.shifted(-sequences * size), words)


def impossible(model: ModelSpec, flags: ServeFlags) -> tuple[str, str] | None:
    """What vLLM refuses before it looks at any memory: the cause and a sentence; None where it goes on."""
    size = flags.tensor_parallel_size
    not_divisible = "model/parallel-size-not-divisible"
    if min(size, flags.pipeline_parallel_size, flags.data_parallel_size) < 1:
        return not_divisible, "a parallel size is less than 1"
    if model.n_heads % size:
        return not_divisible, f"{model.n_heads} attention heads can't be divided by --tensor-parallel-size {size}"
    if not model.is_mla and model.n_kv_heads % size and size % model.n_kv_heads:
        return not_divisible, f"{model.n_kv_heads} KV heads and --tensor-parallel-size {size} don't divide each other"
    if flags.pipeline_parallel_size > model.n_layers:
        return not_divisible, f"{model.n_layers} layers can't be divided by {flags.pipeline_parallel_size} stages"
    return None


def above_limit(model: ModelSpec, flags: ServeFlags) -> str | None:
    """What vLLM says to a --max-model-len above the model's own limit; None where it takes it."""
    length, limit = flags.max_model_len, model.max_position_embeddings
    allowed = flags.environment_value("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if allowed or flags.value("--hf-overrides") or flags.value("--rope-scaling"):
        return None
    if length and limit and length > limit:
        return f"--max-model-len {length} is above the model's {limit} positions"
    return None


def largest_fitting(situation: Situation, *, below: int | None = None) -> int | None:
    """The largest --max-num-seqs, today's or a power of two, that surely fits; `below` leaves out failed ones."""
    now = situation.flags.max_num_seqs
    powers = [2**exponent for exponent in range(now.bit_length() - 1, -1, -1) if 2**exponent < now]
    candidates = [value for value in [now, *powers] if below is None or value < below]
    return next((value for value in candidates if surely_fits(situation.with_max_num_seqs(value))), None)


def surely_fits(situation: Situation) -> bool:
    """Whether every check holds even at the unfavourable end of its band."""
    return all(check.slack.low >= 0 for check in checks_of(situation, add_up(situation)))
