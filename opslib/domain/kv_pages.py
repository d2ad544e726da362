"""Bytes that one layer keeps on one rank: per token of attention, per sequence of a state.

Sources: vllm/v1/kv_cache_interface.py; model_executor/layers/mamba/mamba_utils.py;
v1/attention/backends/mla/indexer.py.
"""

from opslib.domain.engine_defaults import EngineVersion
from opslib.domain.model_layers import INDEXER_BYTES, Layer
from opslib.domain.model_spec import ModelSpec
from opslib.domain.serve_flags import ServeFlags

_LATENT_SINCE = (0, 7, 1)
_PADDED_HEAD = 256  # config.py `get_head_size` of DeepSeek-V2: FlashAttention knows no heads of 192
_SPARSE_FP8_BYTES = 656  # fp8_ds_mla: 512 fp8 values, 16 bytes of scales, 64 bf16 rope values
_COMPRESSED_FP8_BYTES = 584  # DeepSeek-V4: 448 fp8 values, 64 bf16 rope values, scales
_ELEMENT = {"float32": 4.0, "float": 4.0, "nvfp4": 0.5625, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
# bits of a key's and of a value's number (quantization/turboquant/config.py `TQ_PRESETS`)
_TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_STATE_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}


def cache_dtype(model: ModelSpec, flags: ServeFlags) -> str:
    """The effective --kv-cache-dtype: "auto" is the model's own, or fp8 where the checkpoint brings a scheme for it."""
    asked = str(flags.value("--kv-cache-dtype") or "auto").lower()
    return "fp8" if asked == "auto" and model.quantization.has_fp8_kv_cache else asked


def model_dtype_bytes(model: ModelSpec, flags: ServeFlags) -> int:
    """Bytes of a value of the model's dtype: what --dtype says, or the config ("auto" runs float32 as float16)."""
    asked = str(flags.value("--dtype") or "auto").lower()
    return int(_ELEMENT[asked]) if asked in _ELEMENT else min(model.dtype_bytes, 2)


def element_bytes(model: ModelSpec, flags: ServeFlags) -> float:
    """Bytes of one cached value."""
    name = cache_dtype(model, flags)
    if name.startswith(("fp8", "int8", "turboquant")):
        return 1.0
    if name.startswith(("nvfp4", "fp4", "int4")):
        return _ELEMENT["nvfp4"]
    return _ELEMENT.get(name, float(model_dtype_bytes(model, flags)))


def token_bytes(layer: Layer, model: ModelSpec, flags: ServeFlags, version: EngineVersion) -> float:
    """What an attention layer keeps for one token on one rank.

    KV heads are copied where there are fewer than ranks; a latent (MLA) is whole on every rank.
    """
    width = element_bytes(model, flags)
    if layer.kind == "sparse_mla":
        is_packed = cache_dtype(model, flags).startswith("fp8") or (
            cache_dtype(model, flags) == "auto" and version.expected < (0, 12, 0)
        )
        return (_SPARSE_FP8_BYTES if is_packed else layer.latent_dim * 2.0) + INDEXER_BYTES
    if layer.kind == "mla" and _is_latent_unused(layer, flags, version):
        return 2.0 * max(1, model.n_kv_heads // flags.tensor_parallel_size) * _PADDED_HEAD * width
    if layer.latent_dim:
        is_compressed = layer.ratio > 1 or layer.kind == "sliding"
        own = _COMPRESSED_FP8_BYTES if is_compressed and width == 1 else layer.latent_dim * width
        return (own + (INDEXER_BYTES if layer.has_indexer else 0)) / layer.ratio
    heads = max(1, layer.n_kv_heads // flags.tensor_parallel_size)
    if preset := _TURBOQUANT.get(cache_dtype(model, flags)):
        if layer.is_boundary:  # the first and last two layers stay as they are
            return 2.0 * heads * layer.head_dim * model_dtype_bytes(model, flags)
        return float(heads * _packed_slot(layer.head_dim, *preset))
    scales = 8.0 * heads if "per_token_head" in cache_dtype(model, flags) else 0.0
    return heads * (layer.head_dim + (layer.value_dim or layer.head_dim)) * width + scales


def _is_latent_unused(layer: Layer, flags: ServeFlags, version: EngineVersion) -> bool:
    """Whether heads of 256 values are kept instead of the latent: before MLA was built in, or where it is off."""
    is_off = flags.environment_value("VLLM_MLA_DISABLE") == "1"
    return layer.ratio == 1 and (is_off or version.expected < _LATENT_SINCE)


def _packed_slot(head_dim: int, key_bits: int, value_bits: int) -> int:
    """Bytes of a head's key and value of one token: keys of 8 bits are FP8, all others have a norm; even in all."""
    key = head_dim if key_bits == 8 else -(-head_dim * key_bits // 8) + 2
    size = key + -(-head_dim * value_bits // 8) + 4
    return size + size % 2


def state_bytes(layer: Layer, model: ModelSpec, flags: ServeFlags) -> int:
    """What a recurrent layer keeps of one sequence on one rank; drafts lengthen the convolution's part."""
    shape, size = layer.state, flags.tensor_parallel_size
    if shape is None:
        return 0
    conv_bytes = _STATE_ELEMENT.get(str(flags.value("--mamba-cache-dtype")), model_dtype_bytes(model, flags))
    state = _STATE_ELEMENT.get(str(flags.value("--mamba-ssm-cache-dtype")), shape.recurrent_bytes)
    groups = shape.conv_groups
    if groups and shape.n_groups % size:  # groups are copied until each rank has one (`extra_groups_for_head_shards`)
        groups = groups // shape.n_groups * size
    width = (shape.conv_width - shape.conv_groups + groups) // size
    return (shape.conv_rows + flags.n_draft_tokens) * width * conv_bytes + shape.recurrent_elements // size * state
