"""What vLLM refuses before it starts an engine core: a configuration that the model or the machine cannot have."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional

ERROR = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, %s"
TOO_LONG = (
    "User-specified max_model_len (%d) is greater than the derived max_model_len (max_position_embeddings=%d or "
    "model_max_length=None in model's config.json). To allow overriding this maximum, set the env var "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
)
NO_CONFIG = (
    "Invalid repository ID or local directory specified: '%s'.\nPlease verify the following requirements:\n"
    "1. Provide a valid Hugging Face repository ID.\n"
    "2. Specify a local directory that contains a recognized configuration file.\n"
    "   - For Hugging Face models: ensure the presence of a 'config.json'."
)
HEADS = "Total number of attention heads (%d) must be divisible by tensor parallel size (%d)."
WORLD = (
    "World size (%d) is larger than the number of available GPUs (%d) in this node. If this is intentional and you are "
    "using:\n- ray, set '--distributed-executor-backend ray'."
)


def missing_config(model: str) -> str:
    """The exception where there is no config.json."""
    return ERROR % (NO_CONFIG % model)


def refusal(flags: Mapping[str, Any], config: Mapping[str, Any], n_gpus: int) -> Optional[str]:
    """The exception that vLLM raises for these flags, None where they can be had."""
    limit = int(config.get("max_position_embeddings") or flags["max_model_len"])
    if flags["max_model_len"] > limit:
        return ERROR % (TOO_LONG % (flags["max_model_len"], limit))
    world = int(flags["tensor_parallel_size"])
    if int(config["num_attention_heads"]) % world:
        return ERROR % (HEADS % (config["num_attention_heads"], world))
    if world > n_gpus:
        return ERROR % (WORLD % (world, n_gpus))
    return None


def visible_gpus(count: int) -> List[int]:
    """The GPU indices that CUDA_VISIBLE_DEVICES leaves."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(count))
    return [int(part) for part in text.split(",") if part.strip().isdigit() and int(part) < count]


def shown(given: Mapping[str, Any]) -> Dict[str, Any]:
    """The arguments as vLLM logs them: the model twice, then what differs from the defaults."""
    return {"model_tag": given["model"], **given}
