"""What an engine on the CPU will do with its KV cache: no GPU budget, but a size that is given, and what it holds.

Source: vllm/platforms/cpu.py (`VLLM_CPU_KVCACHE_SPACE`, GiB of host memory; `--kv-cache-memory-bytes` goes before it).
"""

from opslib.domain.engine_defaults import GIB, read_engine_version, version_words
from opslib.domain.kv_cache import demand, engine_tokens, largest_request, make_pool
from opslib.domain.memory_plan import MemoryPlan
from opslib.domain.memory_situation import settle
from opslib.domain.model_spec import ModelSpec
from opslib.domain.states import State
from opslib.domain.vllm_flags import ServeFlags

SPACE = "VLLM_CPU_KVCACHE_SPACE"
_NO_GPU = "the engine runs on the CPU: no GPU memory is planned"


def plan_on_cpu(model: ModelSpec, flags: ServeFlags, engine_version: str = "") -> MemoryPlan:
    """Tokens and requests that the given KV cache holds; critical where it is smaller than one longest request.

    Without a size (neither the flag nor the variable) the engine takes a share of the host's memory: not planned.
    """
    given = _cache_bytes(flags)
    if not given:
        return MemoryPlan(state=State.OK, summary=_NO_GPU, engine_version=version_words(engine_version))
    version = read_engine_version(engine_version)
    flags = settle(model, flags, version, 0)
    length = flags.max_model_len or model.max_position_embeddings or 1
    pool, need = make_pool(model, model.layers, flags, version), demand(model, flags, version)
    n_blocks = int(given // pool.bytes_per_block) if pool.bytes_per_block else 0
    tokens, concurrency = engine_tokens(pool, need, n_blocks, length, version)
    longest = largest_request(pool, need, given)
    fits = longest >= length
    holds = f"its KV cache of {given / GIB:.2f} GiB holds {tokens:,} tokens"
    told = "" if fits else f", one request of {length:,} needs more: at most {longest:,}"
    return MemoryPlan(
        state=State.OK if fits else State.CRITICAL,
        summary=f"{_NO_GPU}; {holds}{told}" if fits else f"does not fit: {holds}{told}",
        cause=None if fits else "gpu-memory/kv-cache-below-max-model-len",
        engine_version=version_words(engine_version),
        max_model_len=length,
        max_num_seqs=flags.max_num_seqs,
        kv_cache_tokens=tokens,
        max_concurrency=round(concurrency, 4),
        estimated_max_model_len=min(longest, model.max_position_embeddings or longest) or None,
        flags=dict(flags.flags),
    )


def _cache_bytes(flags: ServeFlags) -> float:
    if flags.kv_cache_memory_bytes is not None:
        return float(flags.kv_cache_memory_bytes)
    try:
        return max(0.0, float(flags.environment_value(SPACE) or 0)) * GIB
    except ValueError:
        return 0.0
