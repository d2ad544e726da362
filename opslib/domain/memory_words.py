"""Where each number of a memory plan comes from, and what an operator should know besides."""

from collections.abc import Iterator

from opslib.domain import memory_terms as terms
from opslib.domain.kv_pages import cache_dtype
from opslib.domain.memory_situation import Situation
from opslib.domain.memory_sums import Sums
from opslib.domain.serve_flags import FlagValue


def sources(situation: Situation) -> dict[str, str]:
    """Each term's source, in words."""
    figures, seen, flags = terms.table(), situation.observed, situation.flags
    read = "read from the launch's journal"
    flag = flags.flags.get("--gpu-memory-utilization")
    share = f"{flags.gpu_memory_utilization:g} of {situation.total_gib:.2f} GiB ({flag.origin if flag else 'default'})"
    ranks = f"{situation.loaded.source} / {flags.tensor_parallel_size} ranks x {flags.pipeline_parallel_size} stages"
    context = f"{figures['context']['source']}; {figures['fragmentation']['source']}"
    is_shown = seen.free_at_failure_gib is not None
    cache = "budget - weights - activation_peak - non_torch"
    if terms.is_graph_budgeted(situation):
        cache += " - the profile's estimate of CUDA graphs"
    if flags.kv_cache_memory_bytes is not None:
        cache = "--kv-cache-memory-bytes"
    return {
        "total": "the GPU's memory",
        "budget": share,
        "weights": read if seen.weights_gib is not None else ranks,
        "forward_peak": f"{figures['forward']['source']} ({flags.max_num_batched_tokens})",
        "sampler_peak": f"{terms.sampler_row(situation)['source']} ({flags.max_num_seqs} rows)",
        "activation_peak": "the larger of forward_peak (with the encoder's) and sampler_peak; reserved by the profile",
        "non_torch": figures["non_torch"]["source"],
        "cuda_graphs": read if seen.graphs_gib is not None else figures["cuda_graphs"]["source"],
        "context_and_fragmentation": f"total - everything else, {read}" if is_shown else context,
        "kv_cache": cache,
        "sampler_warmup_left": "what is left after KV cache and CUDA graphs",
        "sampler_warmup_needed": "the sampler's dummy run once more, after graph capture",
        "headroom": "sampler_warmup_left - sampler_warmup_needed",
    }


def effective_flags(situation: Situation) -> dict[str, FlagValue]:
    """Every flag that decides memory with its effective value and where that comes from."""
    flags, model = situation.flags, situation.model
    dtype = cache_dtype(model, flags)
    scheme = "the checkpoint's kv_cache_scheme" if dtype == "fp8" else "default: the model's dtype"
    defaults = {
        "--tensor-parallel-size": FlagValue(value=1, origin="default"),
        "--pipeline-parallel-size": FlagValue(value=1, origin="default"),
        "--enforce-eager": FlagValue(value=False, origin="default"),
        "--kv-cache-dtype": FlagValue(value=dtype, origin=scheme),
        "--max-model-len": FlagValue(value=situation.model_len, origin="config.json: the model's own limit"),
    }
    given = {name: flag for name, flag in flags.flags.items() if flag.value != "auto" or name not in defaults}
    return {**defaults, **given}


def notes(situation: Situation, sums: Sums) -> Iterator[str]:
    """What narrows or widens the plan, and what its figures don't say."""
    model, flags, version = situation.model, situation.flags, situation.version
    if not model.is_known:
        yield f"{model.architecture} is not among the known architectures: the bands are wider"
    if model.assumed:
        yield f"config.json lacks {', '.join(model.assumed)}: the defaults of {model.model_type} are taken"
    if situation.loaded.is_at_odds:
        yield "bytes on disk and config.json differ by more than a tenth: the bands are wider"
    if version.is_loose:
        yield "the version is given loosely: the bands span its family"
    if flags.kv_cache_memory_bytes is not None:
        yield "--kv-cache-memory-bytes is given: the profile and --gpu-memory-utilization don't decide the KV cache"
    if cache_dtype(model, flags) == "fp8" and not flags.value("--kv-cache-dtype"):
        yield "the checkpoint has a scheme for its KV cache: it is kept in fp8"
    if flags.has_own_draft_model:
        yield "the draft model's checkpoint isn't given: its weights and KV cache are a guess"
    if flags.has_lora:
        yield "LoRA buffers depend on rank and number of adapters: the band is wider"
    yield from _cache_notes(situation, sums)
    for finding in flags.findings:
        yield finding.summary


def _cache_notes(situation: Situation, sums: Sums) -> Iterator[str]:
    pool, version = sums.pool, situation.version
    yield from pool.notes
    if situation.is_whole_model_checked:
        yield "vLLM 0.14 to 0.16 asks each stage of a pipeline for the KV cache of all layers before it starts"
    length = situation.model_len
    if not pool.is_hybrid or not length:
        return
    held = int(sums.concurrency * length)
    if version.expected < (0, 20, 1) and held > 1.05 * sums.tokens:
        yield (
            f"this version prints the tokens of one of {pool.n_groups} groups: {sums.tokens:,}, while the pool holds "
            f"{held:,} tokens of requests of {length:,}"
        )
    if situation.need.state_blocks - situation.flags.n_draft_tokens > 1:
        yield "prefix caching keeps states at every block: in service about a fifth fewer tokens fit"
