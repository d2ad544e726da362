"""The equations behind the remedies: each looks for one flag's smallest change with which everything surely fits."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pydantic import JsonValue

from opslib.domain import memory_terms as terms
from opslib.domain.bands import Band
from opslib.domain.engine_defaults import GIB
from opslib.domain.kv_cache import largest_request, request_bytes
from opslib.domain.kv_pages import cache_dtype
from opslib.domain.memory_checks import impossible, largest_fitting, surely_fits
from opslib.domain.memory_situation import Situation
from opslib.domain.memory_sums import Sums, add_up, binding_rank
from opslib.domain.states import Value

_LENGTH_STEP = 1024
_UTILIZATIONS = tuple(percent / 100 for percent in range(50, 99))
_SIZES = (1, 2, 4, 8, 16)


class Remedy(Value):
    """One flag to change: why (the sums, in GiB), what it costs, and how to see that it helped."""

    cause: str
    flag: str
    value: str
    reason: str
    cost: str
    check: str


class Change(NamedTuple):
    """One flag's new value, why, what it costs, and how to see that it helped."""

    flag: str
    value: JsonValue
    reason: str
    cost: str
    check: str

    def remedy(self, cause: str) -> Remedy:
        """The change as the answer to a cause."""
        text = "" if self.value is True else f"{self.value:.2f}" if isinstance(self.value, float) else str(self.value)
        return Remedy(cause=cause, flag=self.flag, value=text, reason=self.reason, cost=self.cost, check=self.check)


def _effect(before: Sums, after: Sums, situation: Situation) -> str:
    """How the cache and what runs at once change."""
    length = situation.model_len
    words = f"the KV cache goes from {before.kv_cache.expected:.2f} to {after.kv_cache.expected:.2f} GiB per GPU"
    if not length:
        return words
    return (
        f"{words} ({int(before.concurrency * length):,} to {int(after.concurrency * length):,} tokens, "
        f"{before.concurrency:.1f} to {after.concurrency:.1f} requests of {length:,} at once)"
    )


def _fewer_sequences(situation: Situation, _: int) -> Iterator[Change]:
    now = situation.flags.max_num_seqs
    value = largest_fitting(situation, below=min(now, situation.observed_max_num_seqs))
    if value is None:
        return
    before, after = add_up(situation), add_up(situation.with_max_num_seqs(value))
    factor, vocabulary = terms.sampler_row(situation)["u"][1], situation.model.vocab_size
    reason = (
        f"the sampler's second warm-up with {now} dummy requests needs {before.sampler.expected:.2f} GiB "
        f"({factor:g} x {now} x {vocabulary} x 4 bytes), {before.left.expected:.2f} GiB are left; "
        f"with {value} it needs {after.sampler.expected:.2f} GiB and {after.left.expected:.2f} GiB are left"
    )
    cost = f"at most {value} requests run at once instead of {now}; {_effect(before, after, situation)}"
    yield Change("--max-num-seqs", value, reason, cost, "the unit stays in one invocation until /health answers")


def _sequences_with_blocks(situation: Situation, limit: int) -> Iterator[Change]:
    """As many sequences as the pool surely has blocks for states; else as the sampler leaves room for."""
    now, sums = situation.flags.max_num_seqs, add_up(situation)
    value = int(sums.kv_cache.low * GIB // sums.pool.bytes_per_block) if sums.pool.bytes_per_block else now
    if not situation.needs_state_blocks or value >= now:
        yield from _fewer_sequences(situation, limit)
    elif value > 0 and surely_fits(fewer := situation.with_max_num_seqs(value)):
        reason = f"{now} sequences need as many blocks for their states, the pool surely has {value}"
        cost = f"at most {value} requests run at once instead of {now}; {_effect(sums, add_up(fewer), situation)}"
        yield Change("--max-num-seqs", value, reason, cost, "graph capture begins")


def _shorter_requests(situation: Situation, _: int) -> Iterator[Change]:
    seen, length = situation.observed.available_kv_gib, situation.model_len
    rank, sums = binding_rank(situation)
    available = sums.kv_cache.low if seen is None else seen
    pool, need = situation.checked_pool(rank), situation.need
    longest = largest_request(pool, need, available * GIB)
    fits = longest // _LENGTH_STEP * _LENGTH_STEP or longest
    if not length or not 0 < fits < length:
        return
    left = request_bytes(pool, need, fits) / GIB
    reason = (
        f"one request of {length} tokens needs {sums.request_gib:.2f} GiB of KV cache and {available:.2f} GiB are "
        f"available; {fits} tokens need {left:.2f} GiB"
    )
    cost = f"requests (prompt and answer together) are limited to {fits} tokens instead of {length}"
    check = f'the journal says "Maximum concurrency for {fits:,} tokens per request: 1.00x" or more'
    yield Change("--max-model-len", fits, reason, cost, check)


def _more_share(situation: Situation, _: int) -> Iterator[Change]:
    """The smallest larger share of the GPU with which everything surely fits."""
    now = situation.flags.gpu_memory_utilization
    if situation.flags.kv_cache_memory_bytes is not None:
        return
    for value in (value for value in _UTILIZATIONS if value > now + 1e-9):
        raised = situation.with_flag("--gpu-memory-utilization", value)
        if surely_fits(raised):
            yield _share(situation, raised, value)
            return


def _less_share(situation: Situation, _: int) -> Iterator[Change]:
    """The largest smaller share of the GPU with which everything surely fits."""
    now = situation.flags.gpu_memory_utilization
    for value in (value for value in reversed(_UTILIZATIONS) if value < now - 1e-9):
        lowered = situation.with_flag("--gpu-memory-utilization", value)
        if surely_fits(lowered):
            yield _share(situation, lowered, value)
            return


def _share(before: Situation, after: Situation, value: float) -> Change:
    old, new = add_up(before), add_up(after)
    reason = (
        f"of a budget of {before.budget_gib:.2f} GiB weights take {old.weights.expected:.2f} and the profile "
        f"{old.peak.expected:.2f} GiB, so {old.kv_cache.expected:.2f} GiB remain; of {after.budget_gib:.2f} GiB "
        f"{new.kv_cache.expected:.2f} GiB remain, one request needs {new.request_gib:.2f}"
    )
    difference = after.budget_gib - before.budget_gib
    for_whom = "less per GPU for anything beside the engine" if difference > 0 else "more per GPU beside the engine"
    cost = f"{abs(difference):.2f} GiB {for_whom}; {_effect(old, new, before)}"
    check = 'the journal says "Available KV cache memory" with more than one request needs'
    return Change("--gpu-memory-utilization", value, reason, cost, check)


def _fewer_for_cache(situation: Situation, limit: int) -> Iterator[Change]:
    """Fewer sequences where the sampler holds the peak of the profile."""
    sums = add_up(situation)
    if sums.sampler.expected > sums.forward.expected:
        yield from _fewer_sequences(situation, limit)


def _narrow_cache(situation: Situation, _: int) -> Iterator[Change]:
    """An fp8 KV cache, where it isn't one already."""
    if cache_dtype(situation.model, situation.flags).startswith(("fp8", "int8", "nvfp4")):
        return
    narrowed = situation.with_flag("--kv-cache-dtype", "fp8")
    if surely_fits(narrowed):
        old, new = add_up(situation), add_up(narrowed)
        reason = (
            f"one request needs {new.request_gib:.2f} GiB of fp8 cache instead of {old.request_gib:.2f}, "
            f"{new.kv_cache.expected:.2f} GiB are there"
        )
        cost = f"keys and values lose precision: check answers; {_effect(old, new, situation)}"
        yield Change(
            "--kv-cache-dtype", "fp8", reason, cost, 'the journal says "Using fp8 data type to store kv cache"'
        )


def _more_gpus(situation: Situation, limit: int) -> Iterator[Change]:
    """The smallest larger tensor- or pipeline-parallel size that fits, with as many GPUs as there are."""
    flags = situation.flags
    for name, now in (
        ("--tensor-parallel-size", flags.tensor_parallel_size),
        ("--pipeline-parallel-size", flags.pipeline_parallel_size),
    ):
        for size in (size for size in _SIZES if size > now and flags.n_gpus // now * size <= limit):
            if impossible(situation.model, flags.with_value(name, size, "what-if")):
                continue
            spread = situation.with_flag(name, size)
            if surely_fits(spread):
                old, new = add_up(situation), add_up(spread)
                reason = (
                    f"weights take {new.weights.expected:.2f} GiB per GPU instead of {old.weights.expected:.2f}, "
                    f"{new.kv_cache.expected:.2f} GiB are left for the KV cache"
                )
                cost = f"{flags.n_gpus // now * size} GPUs instead of {flags.n_gpus}; {_effect(old, new, situation)}"
                yield Change(name, size, reason, cost, "every worker reports its weights loaded")
                break


def _eager(situation: Situation, _: int) -> Iterator[Change]:
    if situation.flags.is_eager:
        return
    eager = situation.with_flag("--enforce-eager", value=True)
    if surely_fits(eager):
        graphs = terms.cuda_graphs(situation)
        reason = f"without CUDA graphs {graphs.expected:.2f} GiB less are taken"
        effect = _effect(add_up(situation), add_up(eager), situation)
        cost = f"each decoding step is launched kernel by kernel: slower; {effect}"
        yield Change("--enforce-eager", True, reason, cost, "the unit stays in one invocation until /health answers")


def _share_of_free(situation: Situation, _: int) -> Iterator[Change]:
    """The largest share that what is free now (and a CUDA context) leaves."""
    context: Band = terms.context(situation)
    free = (situation.free_gib if situation.free_gib is not None else situation.total_gib) - context.high
    value = int(free / situation.total_gib * 100) / 100
    if not 0 < value < situation.flags.gpu_memory_utilization:
        return
    lowered = situation.with_flag("--gpu-memory-utilization", value)
    old, new = add_up(situation), add_up(lowered)
    reason = (
        f"{situation.budget_gib:.2f} GiB must be free at the start, {free:.2f} are (after the CUDA context); "
        f"{value:.2f} of {situation.total_gib:.2f} GiB is {lowered.budget_gib:.2f}"
    )
    yield Change("--gpu-memory-utilization", value, reason, _effect(old, new, situation), "the workers go on to load")


SOLVERS: dict[str, tuple[Callable[[Situation, int], Iterator[Change]], ...]] = {
    "gpu-memory/sampler-warmup": (_fewer_sequences, _less_share, _more_gpus),
    "gpu-memory/cuda-graphs": (_sequences_with_blocks, _less_share, _more_share, _eager),
    "gpu-memory/kv-cache-below-max-model-len": (
        _shorter_requests,
        _more_share,
        _fewer_for_cache,
        _narrow_cache,
        _more_gpus,
    ),
    "gpu-memory/no-kv-cache-memory": (_more_share, _fewer_for_cache, _more_gpus),
    "gpu-memory/weights": (_more_gpus,),
    "gpu-memory/free-below-budget": (_share_of_free,),
}
