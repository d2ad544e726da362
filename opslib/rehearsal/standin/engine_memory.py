"""What the stand-in engine's GPU memory comes to: pure sums over the scenario's figures, in GiB."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, NamedTuple

GIB = 1024**3
DEFAULT_MAX_NUM_SEQS = {True: 1024, False: 256}  # by "the GPU has at least 70 GiB" (vllm/engine/arg_utils.py)
BIG_GPU_GIB = 70.0
KV_BLOCK_TOKENS = 16


class MemorySums(NamedTuple):
    """All terms of one rank, in GiB; `outcome` names the first check that fails, else "fits"."""

    requested: float
    context: float
    weights: float
    sampler: float
    forward: float
    peak: float
    kv_cache: float
    graphs: float
    fragmentation: float
    free_at_warmup: float
    outcome: str


def memory_sums(
    figures: Mapping[str, Any],
    flags: Mapping[str, Any],
    vocab: int,
    total_gib: float,
    kv_bytes_per_token: int = 0,
) -> MemorySums:
    """How one rank's memory comes out on an otherwise empty GPU.

    `flags` needs gpu_memory_utilization, max_num_seqs, tensor_parallel_size, enforce_eager, max_model_len;
    `kv_bytes_per_token` 0 leaves out the check that one request of max_model_len fits.
    """
    share = float(figures["weights_tensor_parallel_size"]) / float(flags["tensor_parallel_size"])
    total = int(total_gib * GIB)
    requested = math.ceil(total * float(flags["gpu_memory_utilization"])) / GIB
    context = float(figures["context_gib"])
    weights = float(figures["weights_gib"]) * share
    sampler = float(figures["sampler_multiplier"]) * int(flags["max_num_seqs"]) * vocab * 4 / GIB
    forward = float(figures["forward_peak_gib"])
    peak = max(sampler, forward)
    kv_cache = requested - weights - peak
    if flags.get("kv_cache_memory_bytes"):
        kv_cache = float(flags["kv_cache_memory_bytes"]) / GIB
    graphs = 0.0 if flags.get("enforce_eager") else float(figures["graphs_gib"])
    fragmentation = float(figures["fragmentation_gib"])
    free = total_gib - context - weights - kv_cache - graphs - fragmentation
    need = kv_bytes_per_token * int(flags.get("max_model_len") or 0) / GIB
    checks = (
        ("free-below-budget", total_gib - context >= requested or bool(flags.get("kv_cache_memory_bytes"))),
        ("weights", context + weights <= total_gib),
        ("no-kv-cache-memory", kv_cache > 0),
        ("kv-cache-below-max-model-len", kv_cache >= need),
        ("cuda-graphs", free >= 0),
        ("sampler-warmup", free >= sampler),
    )
    outcome = next((name for name, holds in checks if not holds), "fits")
    return MemorySums(
        requested, context, weights, sampler, forward, peak, kv_cache, graphs, fragmentation, free, outcome
    )


def kv_bytes_per_token(config: Mapping[str, Any], tensor_parallel_size: int) -> int:
    """Bytes of one token's keys and values on one rank (bf16; full attention in every layer)."""
    kv_heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    per_rank = max(1, kv_heads // tensor_parallel_size)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(config["num_hidden_layers"]) * 2 * per_rank * int(head_dim) * 2


def kv_tokens(kv_cache_gib: float, bytes_per_token: int) -> int:
    """How many tokens fit, in whole blocks of 16."""
    return int(kv_cache_gib * GIB) // (bytes_per_token * KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS


def with_defaults(flags: Dict[str, Any], config: Mapping[str, Any], total_gib: float) -> Dict[str, Any]:
    """The flags that the sums need, with vLLM 0.15's defaults for what was not given."""
    is_big = total_gib >= BIG_GPU_GIB
    model_limit = int(config.get("max_position_embeddings") or 2048)
    filled = dict(flags)
    filled["gpu_memory_utilization"] = flags.get("gpu_memory_utilization") or 0.9
    filled["max_num_seqs"] = flags.get("max_num_seqs") or DEFAULT_MAX_NUM_SEQS[is_big]
    filled["tensor_parallel_size"] = flags.get("tensor_parallel_size") or 1
    filled["max_model_len"] = flags.get("max_model_len") or model_limit
    filled["max_num_batched_tokens"] = flags.get("max_num_batched_tokens") or (8192 if is_big else 2048)
    return filled
