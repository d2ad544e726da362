"""What a vLLM engine will do with a GPU's memory, before it is started: terms, bands and a verdict.

The budget is utilization x total. The profile reserves the larger of the forward and the sampler's peak inside it;
KV cache takes what is left. Context, NCCL, fragmentation and (up to 0.19) CUDA graphs eat what the budget leaves. After
the graphs are captured the sampler's dummy run needs its peak a second time: `left` against `needed`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from opslib.domain import kv_cache, memory_terms
from opslib.domain.engine_defaults import GIB, version_words
from opslib.domain.memory_terms import Band, ObservedFigures, Situation, WeightBytes
from opslib.domain.model_spec import ModelSpec
from opslib.domain.states import State, Value
from opslib.domain.vllm_flags import FlagValue, ServeFlags

__all__ = ["MemoryPlan", "MemoryTerm", "ObservedFigures", "WeightBytes", "largest_fitting_max_num_seqs", "plan_memory"]


class MemoryTerm(Value):
    """One part of a GPU's memory as a band in bytes, and where the figures come from."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    source: str


class MemoryPlan(Value):
    """Whether an engine fits its GPUs: ok fits, warning is tight (the band straddles), critical doesn't fit."""

    state: State
    summary: str
    cause: str | None = None  # catalogue id of what would stop the launch
    engine_version: str = ""
    n_gpus: int = 0
    gpu_total_bytes: int = 0
    terms: tuple[MemoryTerm, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    safe_max_num_seqs: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    flags: Mapping[str, FlagValue] = {}
    notes: tuple[str, ...] = ()

    def term(self, name: str) -> MemoryTerm:
        """The term of that name."""
        return next(term for term in self.terms if term.name == name)


class Sums(NamedTuple):
    """All bands of one rank, in GiB."""

    weights: Band
    sampler: Band
    forward: Band
    peak: Band
    non_torch: Band
    graphs: Band
    beside: Band
    kv_cache: Band
    left: Band
    slack: Band
    request_gib: float


class Check(NamedTuple):
    """One thing that must hold for a launch to succeed: it fails where its slack is negative."""

    cause: str
    slack: Band
    sentence: str


def plan_memory(
    model: ModelSpec,
    flags: ServeFlags,
    *,
    weights: WeightBytes,
    gpu_total_bytes: int | None,
    engine_version: str = "",
    observed: ObservedFigures | None = None,
) -> MemoryPlan:
    """Whether a model fits with these flags on GPUs of `gpu_total_bytes` each (None: a CPU engine, nothing planned).

    `observed` (the figures of a launch with the same model on the same GPUs) narrows the bands.
    """
    if gpu_total_bytes is None:
        return MemoryPlan(state=State.OK, summary="the engine runs on the CPU: no GPU memory is planned")
    situation = Situation.of(
        model, flags, weights, gpu_total_bytes=gpu_total_bytes, engine_version=engine_version, observed=observed
    )
    sums = add_up(situation)
    safe = largest_fitting(situation)
    state, cause, summary = _impossible(model, flags) or _verdict(tuple(_checks(situation, sums)), situation, safe)
    length = model_len(situation)
    available = max(0.0, sums.kv_cache.expected) * GIB
    concurrency = available / kv_cache.request_bytes(model, flags, length) if length else None
    return MemoryPlan(
        state=state,
        summary=summary,
        cause=cause,
        engine_version=version_words(engine_version),
        n_gpus=flags.tensor_parallel_size * flags.pipeline_parallel_size,
        gpu_total_bytes=gpu_total_bytes,
        terms=tuple(_terms(situation, sums)),
        max_model_len=length,
        max_num_seqs=flags.max_num_seqs,
        safe_max_num_seqs=safe,
        kv_cache_tokens=int(concurrency * length) if concurrency and length else None,
        max_concurrency=round(concurrency, 2) if concurrency else None,
        flags=dict(flags.flags),
        notes=tuple(_notes(model, flags)),
    )


def largest_fitting_max_num_seqs(
    model: ModelSpec,
    flags: ServeFlags,
    *,
    weights: WeightBytes,
    gpu_total_bytes: int,
    engine_version: str = "",
    observed: ObservedFigures | None = None,
) -> int | None:
    """The largest --max-num-seqs, at most today's, whose high band fits: today's value or a power of two; or None."""
    return largest_fitting(
        Situation.of(
            model, flags, weights, gpu_total_bytes=gpu_total_bytes, engine_version=engine_version, observed=observed
        )
    )


def largest_fitting(situation: Situation, *, below: int | None = None) -> int | None:
    """The same for a situation; `below` leaves out values that are known to have failed."""
    now = situation.flags.max_num_seqs
    powers = [2**exponent for exponent in range(now.bit_length() - 1, -1, -1) if 2**exponent < now]
    candidates = [value for value in [now, *powers] if below is None or value < below]
    return next((value for value in candidates if surely_fits(situation.with_max_num_seqs(value))), None)


def surely_fits(situation: Situation) -> bool:
    """Whether every check holds even at the unfavourable end of its band."""
    return all(check.slack.low >= 0 for check in _checks(situation, add_up(situation)))


def model_len(situation: Situation) -> int | None:
    """The effective max_model_len: the flag's, or the model's own."""
    return situation.flags.max_model_len or situation.model.max_position_embeddings


def add_up(situation: Situation) -> Sums:
    """All terms of one rank for one set of flags.

    The reserved and the repeated sampler run are one quantity, so their difference is taken before bands are combined.
    """
    weights, sampler = memory_terms.weights(situation), memory_terms.sampler_peak(situation)
    forward, extra = memory_terms.forward_peak(situation), memory_terms.non_torch(situation)
    graphs, beside = memory_terms.cuda_graphs(situation), memory_terms.beside_the_budget(situation)
    peak = memory_terms.larger(forward, sampler)
    total = situation.total_gib
    outside = memory_terms.graphs_outside_budget(situation)
    in_budget = memory_terms.exactly(0.0) if outside == graphs else graphs
    explicit = situation.flags.value("--kv-cache-memory-bytes")
    if isinstance(explicit, int):
        cache = memory_terms.exactly(explicit / GIB)
        taken = weights + extra + graphs + beside + cache
        slack = memory_terms.exactly(total).minus(taken + sampler)
    else:
        cache = memory_terms.exactly(situation.budget_gib).minus(weights + peak + extra + in_budget)
        unbudgeted = memory_terms.exactly(total - situation.budget_gib)
        spare = Band(*(max(0.0, bound) for bound in forward.minus(sampler)))  # what the forward peak leaves the sampler
        slack = (unbudgeted + spare).minus(outside + beside)
    left = Band(slack.low + sampler.low, slack.expected + sampler.expected, slack.high + sampler.high)
    length = model_len(situation)
    request = kv_cache.request_bytes(situation.model, situation.flags, length) / GIB if length else 0.0
    return Sums(weights, sampler, forward, peak, extra, graphs, beside, cache, left, slack, request)


def _checks(situation: Situation, sums: Sums) -> Iterator[Check]:
    """What must hold, in the order in which a launch would fail."""
    total, flags = memory_terms.exactly(situation.total_gib), situation.flags
    if flags.value("--kv-cache-memory-bytes") is None:
        slack = Band(*(bound - situation.budget_gib for bound in total.minus(memory_terms.context(situation))))
        words = f"the budget of {situation.budget_gib:.2f} GiB is more than what the CUDA context leaves free"
        yield Check("gpu-memory/free-below-budget", slack, words)
    slack = total.minus(memory_terms.context(situation) + sums.weights)
    yield Check("gpu-memory/weights", slack, f"the weights need {sums.weights.expected:.2f} GiB per GPU")
    words = f"{sums.kv_cache.expected:.2f} GiB are left for the KV cache"
    yield Check("gpu-memory/no-kv-cache-memory", sums.kv_cache, words)
    need = f"one request of {model_len(situation)} tokens needs {sums.request_gib:.2f} GiB of KV cache, {words}"
    yield Check("gpu-memory/kv-cache-below-max-model-len", _shifted(sums.kv_cache, -sums.request_gib), need)
    words = "the CUDA graphs have to fit beside weights and KV cache"
    yield Check("gpu-memory/cuda-graphs", sums.left, words)
    words = (
        f"the sampler's second warm-up with {flags.max_num_seqs} dummy requests needs {sums.sampler.expected:.2f} GiB, "
        f"{sums.left.expected:.2f} GiB are left for it"
    )
    yield Check("gpu-memory/sampler-warmup", sums.slack, words)


def _impossible(model: ModelSpec, flags: ServeFlags) -> tuple[State, str, str] | None:
    """What vLLM refuses before it looks at any memory."""
    size, length, limit = flags.tensor_parallel_size, flags.max_model_len, model.max_position_embeddings
    if size < 1 or model.n_heads % size:
        words = f"does not start: {model.n_heads} attention heads can't be divided by --tensor-parallel-size {size}"
        return State.CRITICAL, "model/parallel-size-not-divisible", words
    if length and limit and length > limit and not flags.value("--hf-overrides") and not flags.value("--rope-scaling"):
        words = f"does not start: --max-model-len {length} is above the model's {limit} positions"
        return State.CRITICAL, "model/max-model-len-above-limit", words
    return None


def _shifted(band: Band, by: float) -> Band:
    return Band(band.low + by, band.expected + by, band.high + by)


def _verdict(checks: tuple[Check, ...], situation: Situation, safe: int | None) -> tuple[State, str | None, str]:
    failed = next((check for check in checks if check.slack.high < 0), None)
    doubtful = next((check for check in checks if check.slack.low < 0), None)
    advice = ""
    if safe and safe < situation.flags.max_num_seqs:
        advice = f"; --max-num-seqs {safe} would be safe"
    if failed:
        return State.CRITICAL, failed.cause, f"does not fit: {failed.sentence}{advice}"
    if doubtful:
        return State.WARNING, doubtful.cause, f"tight: {doubtful.sentence}{advice}"
    cache = checks[-1]
    return State.OK, None, f"fits: {cache.sentence}"


def _terms(situation: Situation, sums: Sums) -> Iterator[MemoryTerm]:
    figures, seen = memory_terms.table(), situation.observed
    read = "read from the launch's journal"
    budget = memory_terms.exactly(situation.budget_gib)
    flag = situation.flags.flags.get("--gpu-memory-utilization")
    origin = flag.origin if flag else "default"
    share = f"{situation.flags.gpu_memory_utilization:g} of {situation.total_gib:.2f} GiB ({origin})"
    rows = situation.flags.max_num_seqs, situation.flags.max_num_batched_tokens
    yield _term("budget", budget, share)
    loaded = read if seen.weights_gib is not None else f"safetensors headers / {situation.flags.tensor_parallel_size}"
    yield _term("weights", sums.weights, loaded)
    yield _term("forward_peak", sums.forward, f"{figures['forward']['source']} ({rows[1]})")
    yield _term(
        "sampler_peak", sums.sampler, f"{memory_terms.sampler_row(situation.version)['source']} ({rows[0]} rows)"
    )
    yield _term("activation_peak", sums.peak, "the larger of forward_peak and sampler_peak; reserved by the profile")
    yield _term("non_torch", sums.non_torch, figures["non_torch"]["source"])
    yield _term("cuda_graphs", sums.graphs, read if seen.graphs_gib is not None else figures["cuda_graphs"]["source"])
    context = f"{figures['context']['source']}; {figures['fragmentation']['source']}"
    narrowed = seen.free_at_failure_gib is not None
    yield _term("context_and_fragmentation", sums.beside, f"total - everything else, {read}" if narrowed else context)
    yield _term("kv_cache", sums.kv_cache, "budget - weights - activation_peak - non_torch")
    yield _term("sampler_warmup_left", sums.left, "what is left after KV cache and CUDA graphs")
    yield _term("sampler_warmup_needed", sums.sampler, "the sampler's dummy run once more, after graph capture")
    yield _term("headroom", sums.slack, "sampler_warmup_left - sampler_warmup_needed")


def _term(name: str, band: Band, source: str) -> MemoryTerm:
    low, expected, high = (round(bound * GIB) for bound in band)
    return MemoryTerm(name=name, low_bytes=low, expected_bytes=expected, high_bytes=high, source=source)


def _notes(model: ModelSpec, flags: ServeFlags) -> Iterator[str]:
    if not model.is_known:
        yield f"{model.architecture} is not among the known architectures: the bands are wider"
    if model.n_state_layers:
        yield "layers with a state (linear attention, Mamba) are planned without their state"
    if flags.value("--speculative-config") is not None:
        yield "the draft model's weights and KV cache are not planned"
    for finding in flags.findings:
        yield finding.summary
