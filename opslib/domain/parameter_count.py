"""How many bytes of weights a config.json implies: layer by layer, with what tensor parallelism divides or copies.

Sources: the models' `modeling_*.py`; vllm/model_executor/models/*.py (which linear layers are parallel).
"""

from collections.abc import Iterator
from typing import NamedTuple

from opslib.domain.model_layers import Layer
from opslib.domain.model_spec import ModelSpec

_TWO_MATRICES = ("nemotron_h", "phi", "gpt2", "opt")  # feed-forward layers without a gate


class Part(NamedTuple):
    """Weights of one kind: bytes, and the number of copies that a tensor-parallel group holds (tp: all ranks)."""

    name: str
    n_bytes: float
    is_sharded: bool = True
    n_units: int = 0  # KV heads or experts: shared out whole; 0 divides freely


def layer_parts(model: ModelSpec, index: int) -> Iterator[Part]:
    """The weights of one layer of the main model."""
    if model.traits.get("num_mem_blocks"):
        yield from _shared_block_parts(model, model.layers[index])
        return
    layer, moe = model.layers[index], model.moe
    yield from _attention(model, layer)
    if per_layer := int(model.traits.get("hidden_size_per_layer_input") or 0):
        yield Part("gate", 2 * model.hidden_size * per_layer * model.dtype_bytes, is_sharded=False)
    if layer.feed_forward is not None:
        yield Part("mlp", _packed(model, "mlp", _matrices(model) * model.hidden_size * layer.feed_forward))
        return
    has_own_feed_forward = any(each.kind == "none" for each in model.layers)
    if has_own_feed_forward and layer.kind != "none":
        return
    if moe and index in _moe_indices(model):
        yield from _experts(model)
        if model.traits.get("has_dense_mlp_too"):
            yield Part("mlp", _packed(model, "mlp", _matrices(model) * model.hidden_size * model.intermediate_size))
    elif not (moe and moe.n_moe_layers == model.n_layers):
        width = int(model.traits.get("intermediate_size_mlp") or model.intermediate_size)
        width *= 2 if layer.is_cache_shared and model.traits.get("use_double_wide_mlp") else 1
        yield Part("mlp", _packed(model, "mlp", _matrices(model) * model.hidden_size * width))


def _shared_block_parts(model: ModelSpec, layer: Layer) -> Iterator[Part]:
    """Zamba: a few transformer blocks, fed with twice the width, are shared by all layers that have attention."""
    if layer.state:
        yield Part("state", _packed(model, "state", layer.state.n_parameters))
    if layer.has_state_too:
        n_users = sum(each.has_state_too for each in model.layers)
        hidden, inner = model.hidden_size, model.n_heads * layer.head_dim
        block = 3 * 2 * hidden * inner + inner * hidden + 3 * hidden * model.intermediate_size
        own = block * int(model.traits["num_mem_blocks"]) / n_users + hidden * hidden
        yield Part("attention", _packed(model, "attention", own))


def _moe_indices(model: ModelSpec) -> frozenset[int]:
    """Which layers have experts; where the pattern isn't known, the last ones."""
    pattern = model.traits.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return frozenset(index for index, letter in enumerate(pattern.replace("|", "")) if letter == "E")
    n_moe = model.moe.n_moe_layers if model.moe else 0
    return frozenset(range(model.n_layers - n_moe, model.n_layers))


def draft_parts(model: ModelSpec) -> Iterator[Part]:
    """The weights of the layers that predict further tokens; their embeddings are the model's own."""
    for layer in model.draft_layers:
        yield from _attention(model, layer)
        if model.moe:
            yield from _experts(model)
        else:
            yield Part("mlp", _packed(model, "mlp", _matrices(model) * model.hidden_size * model.intermediate_size))
        yield Part("draft", 2 * model.hidden_size**2 * model.dtype_bytes)


def embedding_bytes(model: ModelSpec) -> float:
    """The embedding, or as much again for an output layer that isn't tied to it."""
    return -(-model.vocab_size // 64) * 64 * model.hidden_size * model.dtype_bytes


def per_layer_embedding_bytes(model: ModelSpec) -> float:
    """A second embedding with a row for every layer, and its projection (Gemma 3n, Gemma 4 E2B/E4B): gemma4.py."""
    width = int(model.traits.get("hidden_size_per_layer_input") or 0) * model.n_layers
    vocabulary = int(model.traits.get("vocab_size_per_layer_input") or model.vocab_size)
    return (-(-vocabulary // 64) * 64 + model.hidden_size) * width * model.dtype_bytes


def latent_copies(model: ModelSpec) -> float:
    """MLA keeps the absorbed up-projections beside the loaded ones (v1/attention/backends/mla/common.py)."""
    n_mla = sum(layer.kind in {"mla", "sparse_mla"} and layer.ratio == 1 for layer in model.layers)
    if not n_mla or not model.traits.get("kv_lora_rank"):
        return 0.0
    per_head = int(model.traits.get("qk_nope_head_dim") or 128) + int(model.traits.get("v_head_dim") or 128)
    return float(n_mla * int(model.traits["kv_lora_rank"]) * model.n_heads * per_head * model.dtype_bytes)


def _packed(model: ModelSpec, scope: str, n_parameters: float) -> float:
    """Bytes of a part: packed where the quantization reaches it."""
    packing = model.quantization
    reach = {"all": ("attention", "state", "mlp", "experts"), "mlp": ("mlp", "experts"), "experts": ("experts",)}
    is_packed = packing.method is not None and scope in reach[packing.scope]
    if scope in {"attention", "state"} and packing.attention_bits:
        return n_parameters * packing.attention_bits / 8
    if scope in {"attention", "state"} and (packing.keeps_attention or (packing.bits == 4.5 and model.moe)):
        is_packed = False
    return n_parameters * (packing.bits / 8 if is_packed else model.dtype_bytes)


def _matrices(model: ModelSpec) -> int:
    return 2 if model.model_type in _TWO_MATRICES else 3


def _attention(model: ModelSpec, layer: Layer) -> Iterator[Part]:
    hidden, traits = model.hidden_size, model.traits
    yield Part("norm", 2 * hidden * model.dtype_bytes, is_sharded=False)
    if layer.state:
        yield Part("state", _packed(model, "state", layer.state.n_parameters))
    if layer.kind in {"mla", "sparse_mla"}:
        yield from _latent_attention(model, layer)
    elif layer.kind in {"full", "sliding", "chunked"}:
        dim = layer.head_dim or model.head_dim
        queries = model.n_heads * dim
        doubled = 2 if traits.get("attention_gate") or traits.get("attn_output_gate") else 1
        own = hidden * queries * (doubled + 1) + (queries if traits.get("qkv_bias") else 0)
        yield Part("attention", _packed(model, "attention", own))
        if not layer.is_cache_shared:
            keys = 2 * hidden * layer.n_kv_heads * dim
            yield Part("keys", _packed(model, "attention", keys), n_units=layer.n_kv_heads)


def _latent_attention(model: ModelSpec, layer: Layer) -> Iterator[Part]:
    hidden, traits, heads = model.hidden_size, model.traits, model.n_heads
    rope, nope = int(traits.get("qk_rope_head_dim") or 64), int(traits.get("qk_nope_head_dim") or 128)
    value, rank = int(traits.get("v_head_dim") or 128), int(traits.get("kv_lora_rank") or layer.latent_dim)
    q_rank = int(traits.get("q_lora_rank") or 0)
    queries = (q_rank or hidden) * heads * (nope + rope)
    own = queries + rank * heads * (nope + value) + heads * value * hidden
    yield Part("attention", _packed(model, "attention", own))
    down = hidden * (rank + rope) + hidden * q_rank
    if layer.has_indexer:
        n_index, dim = int(traits.get("index_n_heads") or 64), int(traits.get("index_head_dim") or 128)
        down += (q_rank or hidden) * n_index * dim + hidden * (dim + n_index)
    yield Part("latent", _packed(model, "attention", down), is_sharded=False)


def _experts(model: ModelSpec) -> Iterator[Part]:
    moe, hidden = model.moe, model.hidden_size
    if moe is None:
        return
    each = _matrices(model) * hidden * moe.intermediate_size
    n_bytes = _packed(model, "experts", float(moe.n_experts * each))
    if model.traits.get("expert_bias"):
        n_bytes += moe.n_experts * (2 * moe.intermediate_size + hidden) * model.dtype_bytes
    yield Part("experts", n_bytes, n_units=moe.n_experts)
    yield Part("router", hidden * moe.n_experts * model.dtype_bytes, is_sharded=False)
    if moe.n_shared:
        shared = _matrices(model) * hidden * moe.shared_intermediate_size * moe.n_shared
        yield Part("mlp", _packed(model, "mlp", shared))
