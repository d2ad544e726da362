"""The story's inputs and the measured launches, for tests of memory planning."""

import json
import tomllib
from pathlib import Path

from opslib.domain.memory import ObservedFigures, WeightBytes
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments

GIB = 2**30
CASES = Path(__file__).parent / "cases" / "memory"
VARIANTS = tomllib.loads((CASES / "story-variants.toml").read_text())["variant"]
MEASURED = sorted(path.name for path in CASES.glob("*.json"))
WEIGHTS = WeightBytes(total_bytes=230_134_614_000, replicated_bytes=196_755_548)
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "hidden_size": 3072,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 196608,
    "quantization_config": {"quant_method": "fp8"},
}
# what an operator would have typed for the launch's arguments
_FLAGS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "dtype",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "cpu_offload_gb",
    "block_size",
)
_SWITCHES = ("enable_expert_parallel", "enforce_eager", "enable_chunked_prefill", "enable_prefix_caching")
_PHRASES = {
    "mamba-cache-mode align": "--mamba-cache-mode align",
    "mamba-ssm-cache-dtype float16": "--mamba-ssm-cache-dtype float16",
    "LoRA enabled": "--enable-lora",
    "language-model-only": "--language-model-only",
    "online quantization fp8": "--quantization fp8",
}


def story(vocabulary=200064, total_gib=94.97, utilization=0.95, more="", **_):
    """The keyword arguments of plan_memory for the story with some figures changed."""
    line = f"--tensor-parallel-size 4 --gpu-memory-utilization {utilization} --max-model-len 131072 {more}"
    total = int(total_gib * GIB)
    return {
        "model": parse_model_config({**MINIMAX, "vocab_size": vocabulary}),
        "flags": parse_serve_arguments(line.split(), engine_version="0.15.1", gpu_total_bytes=total),
        "weights": WEIGHTS,
        "gpu_total_bytes": total,
        "engine_version": "0.15.1",
    }


def observed(vocabulary=200064, total_gib=94.97, utilization=0.95, sequences=1024, **_):
    """What the journal of a launch with the story's true figures prints, with two digits."""
    unit = sequences * vocabulary * 4 / GIB
    cache = total_gib * utilization - 57.5 - max(4.5, 9.7 * unit)
    free = total_gib - 2.2 - 57.5 - cache - 2.0 - 1.5
    return ObservedFigures(
        weights_gib=57.5,
        available_kv_gib=round(cache, 2),
        graphs_gib=2.0,
        free_at_failure_gib=round(free, 2),
        total_gib=total_gib,
        tried_to_allocate_gib=round(3 * unit, 2),
        max_num_seqs=sequences,
    )


def read_case(name):
    """A measured launch as it was handed over."""
    return json.loads((CASES / name).read_text())


def words_of(case):
    """The `vllm serve` flags of a launch, in words."""
    arguments, words = case["args"], []
    for key in _FLAGS:
        words += [f"--{key.replace('_', '-')}", str(arguments[key])] if arguments.get(key) is not None else []
    for key in _SWITCHES:
        if arguments.get(key) is not None:
            words.append(f"--{'' if arguments[key] else 'no-'}{key.replace('_', '-')}")
    if arguments.get("speculative_config"):
        words += ["--speculative-config", str(arguments["speculative_config"])]
    for phrase, flag in _PHRASES.items():
        words += flag.split() if phrase in (arguments.get("other") or "") else []
    return words


def measured(name, *, kv_cache_memory_bytes=None):
    """(keyword arguments of plan_memory, reported figures) of a measured launch."""
    case = read_case(name)
    arguments, reported, gpu = case["args"], case["reported"], case["gpu"]
    words = words_of(case)
    words += ["--kv-cache-memory-bytes", str(kv_cache_memory_bytes)] if kv_cache_memory_bytes else []
    total, version = int((gpu["total_gib"] or 80) * GIB), case["engine_version"]
    offloaded = arguments.get("cpu_offload_gb") or 0
    loaded = reported["model_loading_gib"]
    by_loading = (loaded + offloaded) * GIB * (arguments["tensor_parallel_size"] or 1) if loaded else None
    weights = case["weights_bytes"] or by_loading
    return {
        "model": parse_model_config(case["config"]),
        "flags": parse_serve_arguments(words, engine_version=version, gpu_total_bytes=total, gpu_name=gpu["name"]),
        "weights": WeightBytes(total_bytes=int(weights)) if weights else None,
        "gpu_total_bytes": total,
        "engine_version": version,
        "gpu_name": gpu["name"],
    }, reported
