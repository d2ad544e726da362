"""What the profile's dummy forward pass takes, its encoder's run included; and the table of measured figures.

Source: vllm/v1/worker/gpu_model_runner.py `profile_run`.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from opslib.domain.bands import Band, exactly, larger
from opslib.domain.engine_defaults import GIB
from opslib.domain.memory_situation import Situation
from opslib.domain.memory_weights import is_hopper, serves_media
from opslib.domain.model_spec import ModelSpec

_LARGEST_ITEM = 16384  # tokens of an image; the encoder's budget is that of a batch


@cache
def table() -> dict[str, Any]:
    """The measured figures of data/memory.toml."""
    return tomllib.loads(files("opslib.domain.data").joinpath("memory.toml").read_text("utf-8"))


def band_of(row: Sequence[float]) -> Band:
    """A row of the table as a band."""
    low, expected, high = row
    return Band(low, expected, high)


def forward_estimate(situation: Situation) -> Band:
    """The dummy forward pass by the measured figures, or the encoder's where that is larger."""
    model, flags, rows = situation.model, situation.flags, table()["forward"]
    own = rows["measured_on_hopper"] if is_hopper(situation.gpu_name) else {}
    measured = own.get(model.model_type) or rows["measured_mib_per_token"].get(model.model_type)
    if measured:
        band = band_of(measured).times(flags.max_num_batched_tokens / 1024)
    else:
        kind = "unknown" if not model.is_known else "moe" if model.moe else "dense"
        layer = _layer_bytes_per_token(model, flags.tensor_parallel_size)
        band = band_of(rows[kind]).times(layer * flags.max_num_batched_tokens / GIB)
    if any(layer.has_indexer for layer in model.layers) and situation.model_len:
        band = band.shifted(40 * situation.model_len * 132 / GIB)  # the indexer's prefill workspace
    if flags.has_lora:
        band = band + band_of(rows["lora_gib"])
    return larger(band.shifted(_encoded_items(situation)), _encoder(situation))


def _encoded_items(situation: Situation) -> float:
    """What the profile's encoded items hold during the forward pass, beyond the one that is in every figure."""
    if not serves_media(situation.model, situation.flags) or situation.flags.value("--skip-mm-profiling"):
        return 0.0
    n_tokens = max(0, situation.flags.max_num_batched_tokens - _LARGEST_ITEM)
    return n_tokens * situation.model.hidden_size * situation.model.dtype_bytes / GIB


def _encoder(situation: Situation) -> Band:
    model, flags = situation.model, situation.flags
    if not serves_media(model, flags) or flags.value("--skip-mm-profiling"):
        return exactly(0.0)
    kind = "qwen" if model.traits.get("encoder") == "qwen" else "plain"
    return band_of(table()["encoder"][kind])


def _layer_bytes_per_token(model: ModelSpec, tensor_parallel_size: int) -> float:
    """Gate and up, their product and three copies of the hidden state; for experts vLLM's fused_moe caches."""
    hidden = 3 * model.hidden_size
    if not model.moe:
        return model.dtype_bytes * (3 * model.intermediate_size / tensor_parallel_size + hidden)
    inner = model.moe.intermediate_size / tensor_parallel_size
    return model.dtype_bytes * (model.moe.experts_per_token * (max(2 * inner, model.hidden_size) + inner) + hidden)
