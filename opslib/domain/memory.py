"""What a vLLM engine will do with a GPU's memory, before it is started: terms, bands and a verdict.

The budget is utilization x total. The profile reserves the largest of the forward, encoder and sampler peaks inside it;
KV cache takes what is left. Context, NCCL, fragmentation and (up to 0.19) CUDA graphs eat what the budget leaves. After
the graphs are captured the sampler's dummy run needs its peak a second time: `left` against `needed`.
"""

from collections.abc import Iterator

from opslib.domain import memory_words as words
from opslib.domain.bands import Band
from opslib.domain.engine_defaults import GIB, version_words
from opslib.domain.memory_checks import Check, above_limit, checks_of, impossible, largest_fitting, surely_fits
from opslib.domain.memory_cpu import plan_on_cpu
from opslib.domain.memory_plan import MemoryPlan, MemoryTerm
from opslib.domain.memory_situation import CHOSEN, Calibration, ObservedFigures, Situation
from opslib.domain.memory_sums import Sums, binding_rank
from opslib.domain.memory_weights import WeightBytes
from opslib.domain.model_spec import ModelSpec
from opslib.domain.states import State
from opslib.domain.vllm_flags import ServeFlags

__all__ = [
    "MemoryPlan",
    "MemoryTerm",
    "ObservedFigures",
    "WeightBytes",
    "plan_memory",
    "surely_fits",
]


def plan_memory(
    model: ModelSpec,
    flags: ServeFlags,
    *,
    weights: WeightBytes | None,
    gpu_total_bytes: int | None,
    engine_version: str = "",
    observed: ObservedFigures | None = None,
    gpu_name: str = "",
    free_gib: float | None = None,
    calibration: Calibration | None = None,
) -> MemoryPlan:
    """Whether a model fits with these flags on GPUs of `gpu_total_bytes` each (None: a CPU engine, its KV cache alone).

    `weights` None counts them from the config; `observed` (the figures of a launch with the same model on the same
    GPUs) narrows the bands; `free_gib` is what each GPU has free before the launch.
    """
    if gpu_total_bytes is None:
        return plan_on_cpu(model, flags, engine_version)
    if refusal := impossible(model, flags):
        return MemoryPlan(
            state=State.CRITICAL,
            cause=refusal[0],
            summary=f"does not start: {refusal[1]}",
            engine_version=version_words(engine_version),
            n_gpus=flags.n_gpus,
            gpu_total_bytes=gpu_total_bytes,
            flags=dict(flags.flags),
        )
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
    return plan_situation(situation, engine_version)


def plan_situation(situation: Situation, engine_version: str = "") -> MemoryPlan:
    """The same for a situation."""
    if situation.is_length_free:
        situation = _longest_fitting(situation)
    flags, length = situation.flags, situation.model_len
    rank, sums = binding_rank(situation)
    safe = largest_fitting(situation)
    state, cause, summary = _verdict(tuple(checks_of(situation, sums)), situation, safe)
    if above := above_limit(situation.model, flags):
        state, cause, summary = State.CRITICAL, "model/max-model-len-above-limit", f"does not start: {above}"
    limit = situation.model.max_position_embeddings
    longest = sums.longest_request if limit is None or length is None else min(sums.longest_request, max(limit, length))
    return MemoryPlan(
        state=state,
        summary=summary,
        cause=cause,
        engine_version=version_words(engine_version),
        n_gpus=flags.n_gpus,
        binding_rank=rank.stage * flags.tensor_parallel_size,
        gpu_total_bytes=round(situation.total_gib * GIB),
        terms=tuple(_terms(situation, sums)),
        max_model_len=length,
        max_num_seqs=flags.max_num_seqs,
        safe_max_num_seqs=safe,
        kv_cache_tokens=sums.tokens if length else _tokens_of_blocks(sums, situation),
        max_concurrency=round(sums.concurrency, 4) if length else None,
        estimated_max_model_len=longest or None,
        weights_by_stage_bytes=tuple(round(each.n_bytes) for each in situation.loaded.ranks),
        flags=words.effective_flags(situation),
        notes=tuple(words.notes(situation, sums)),
    )


def _tokens_of_blocks(sums: Sums, situation: Situation) -> int | None:
    """The tokens of a cache whose blocks are all alike, where no length is known; None where they aren't."""
    if sums.pool.is_hybrid:
        return None
    return sums.n_blocks * sums.pool.block_tokens * situation.need.context_parallel


def _longest_fitting(situation: Situation) -> Situation:
    """With --max-model-len -1 or auto the engine takes the longest request that its cache holds."""
    limit, longest = situation.model_len, binding_rank(situation)[1].longest_request
    if not limit or not 0 < longest < limit:
        return situation
    flags = situation.flags.with_value("--max-model-len", longest, CHOSEN)
    return situation.model_copy(update={"flags": flags})


def _verdict(checks: tuple[Check, ...], situation: Situation, safe: int | None) -> tuple[State, str | None, str]:
    failed = next((check for check in checks if check.slack.high < 0), None)
    doubtful = min((check for check in checks if check.slack.low < 0), key=lambda each: each.slack.low, default=None)
    advice = ""
    if safe and safe < situation.flags.max_num_seqs:
        advice = f"; --max-num-seqs {safe} would be safe"
    if failed:
        return State.CRITICAL, failed.cause, f"does not fit: {failed.sentence}{advice}"
    if doubtful:
        return State.WARNING, doubtful.cause, f"tight: {doubtful.sentence}{advice}"
    roomy = next(check for check in reversed(checks) if "KV cache" in check.sentence and "graphs" not in check.sentence)
    return State.OK, None, f"fits: {roomy.sentence}"


def _terms(situation: Situation, sums: Sums) -> Iterator[MemoryTerm]:
    sources = words.sources(situation)
    bands = {
        "total": Band(situation.total_gib, situation.total_gib, situation.total_gib),
        "budget": Band(situation.budget_gib, situation.budget_gib, situation.budget_gib),
        "weights": sums.weights,
        "forward_peak": sums.forward,
        "sampler_peak": sums.sampler,
        "activation_peak": sums.peak,
        "non_torch": sums.non_torch,
        "cuda_graphs": sums.graphs,
        "context_and_fragmentation": sums.beside,
        "kv_cache": sums.kv_cache,
        "sampler_warmup_left": sums.left,
        "sampler_warmup_needed": sums.sampler,
        "headroom": sums.slack,
    }
    for name, band in bands.items():
        low, expected, high = (round(bound * GIB) for bound in band)
        yield MemoryTerm(name=name, low_bytes=low, expected_bytes=expected, high_bytes=high, source=sources[name])
