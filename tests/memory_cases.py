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


def measured(name):
    """(keyword arguments of plan_memory, reported figures) of a measured launch."""
    case = json.loads((CASES / name).read_text())
    arguments, reported = case["args"], case["reported"]
    words = []
    for key in (
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
    ):
        words += [f"--{key}", str(arguments[key])] if arguments[key] is not None else []
    words += ["--enforce-eager"] if arguments["enforce_eager"] else []
    total, version = int(case["gpu"]["total_gib"] * GIB), case["engine_version"]
    loaded = (reported["model_loading_gib"] or 0) * GIB * arguments["tensor_parallel_size"]
    return {
        "model": parse_model_config(case["config"]),
        "flags": parse_serve_arguments(
            words, engine_version=version, gpu_total_bytes=total, gpu_name=case["gpu"]["name"]
        ),
        "weights": WeightBytes(total_bytes=case["weights_bytes"] or int(loaded)),
        "gpu_total_bytes": total,
        "engine_version": version,
    }, reported
