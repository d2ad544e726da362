"""What each layer of a model keeps of the past: keys and values of all tokens, of a window, a latent, or a state.

Sources: the models' `modeling_*.py`/`configuration_*.py` in transformers;
vllm/model_executor/layers/mamba/mamba_utils.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

Kind = Literal["full", "sliding", "chunked", "mla", "sparse_mla", "state", "none"]
_STATE_WORDS = ("linear", "mamba", "conv", "kda", "delta", "recurrent", "lightning", "ssm")
INDEXER_BYTES = 132  # per token: 128 fp8 values of the indexer's key and a 4-byte scale


class StateShape(Value):
    """What a recurrent layer keeps of each sequence, before tensor parallelism divides it."""

    conv_width: int = 0  # channels of the convolution
    conv_groups: int = 0  # of them, channels that belong to Mamba-2 groups (2 x state size each)
    n_groups: int = 1
    conv_rows: int = 0  # kernel - 1
    recurrent_elements: int = 0
    recurrent_bytes: int = 4  # per element, where no flag says otherwise
    n_parameters: int = 0  # of the layer's own projections


class Layer(Value):
    """One layer: what it keeps per token and per sequence."""

    kind: Kind
    n_kv_heads: int = 0
    head_dim: int = 0
    window: int = 0  # of a sliding layer, or the chunk of a chunked one
    latent_dim: int = 0  # kv_lora_rank + qk_rope_head_dim
    has_indexer: bool = False
    ratio: int = 1  # tokens that share one entry (DeepSeek-V4)
    state: StateShape | None = None
    has_state_too: bool = False  # attention and a state side by side (Zamba2, Falcon-H1)
    is_boundary: bool = False  # one of the first or last two of a model without states: packed caches leave it out
    is_cache_shared: bool = False  # reads an earlier layer's keys and values, keeps none (Gemma 3n, Gemma 4 E2B/E4B)


def layer_words(config: Mapping[str, Any], n_layers: int) -> list[str]:
    """One word per layer, in order: "full", "sliding", "chunked", "state", "both" or "none"."""
    for read in (_of_types, _of_pattern_text, _of_lists, _of_interval, _of_window):
        words = read(config, n_layers)
        if words is not None:
            if len(words) < n_layers:
                raise UnexpectedAnswer(f"config.json: its layer types name {len(words)} of {n_layers} layers")
            return words[:n_layers]
    return ["full"] * n_layers


def _word(text: str) -> str:
    lowered = text.lower()
    if "hybrid" in lowered:
        return "both"
    if "sliding" in lowered or "swa" in lowered:
        return "sliding"
    if "chunk" in lowered:
        return "chunked"
    return "state" if any(word in lowered for word in _STATE_WORDS) else "full"


def _of_types(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list) and types:
        words = [_word(str(kind)) for kind in types]
        return ["state" if w == "state" else w for w in words] if "both" not in words else words
    if isinstance(types, Mapping) and isinstance(types.get("counts"), Mapping):  # a summary: how many of each
        return _spread({_word(str(kind)): int(count) for kind, count in types["counts"].items()}, n_layers)
    return None


def _spread(counts: Mapping[str, int], n_layers: int) -> list[str]:
    """The kinds spread evenly, the most frequent first, the rarest last of each round."""
    if sum(counts.values()) != n_layers:
        raise UnexpectedAnswer(f"config.json: its layer types name {sum(counts.values())} of {n_layers} layers")
    due = dict.fromkeys(sorted(counts, key=lambda name: -counts[name]), 0.0)
    words = []
    for _ in range(n_layers):
        for word in due:
            due[word] += counts[word] / n_layers
        taken = max(due, key=lambda word: due[word])
        due[taken] -= 1
        words.append(taken)
    return words


def _of_pattern_text(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    """Nemotron-H: one letter per layer; M Mamba-2, * attention, - or E a feed-forward layer of its own."""
    pattern = config.get("hybrid_override_pattern")
    del n_layers
    if not isinstance(pattern, str) or not pattern:
        return None
    return [{"M": "state", "*": "full"}.get(letter, "none") for letter in pattern if letter != "|"]


def _of_lists(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    """MiniMax-01 (1 is full), Kimi-Linear (numbered from 1), Bamba, Falcon-H1, Llama-4 (0 is full, without RoPE)."""
    if isinstance(kinds := config.get("attn_type_list"), list):
        return ["full" if kind else "state" for kind in kinds]
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(full := linear.get("full_attn_layers"), list):
        return ["full" if index in full else "state" for index in range(1, n_layers + 1)]
    if isinstance(full := config.get("attn_layer_indices"), list):
        return ["full" if index in full else "state" for index in range(n_layers)]
    if config.get("family") == "falcon_h1":
        return ["both"] * n_layers
    if isinstance(ropes := config.get("no_rope_layers"), list) and ropes and config.get("attention_chunk_size"):
        return ["chunked" if rope else "full" for rope in ropes]
    return None


def _of_interval(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    """Every n-th layer is full attention; the others keep a state, a window or a chunk."""
    rules = (
        ("full_attention_interval", "state", config.get("linear_key_head_dim")),
        ("sliding_window_pattern", "sliding", config.get("sliding_window")),
        ("no_rope_layer_interval", "chunked", config.get("attention_chunk_size")),
    )
    for key, word, is_used in rules:
        every = config.get(key)
        if isinstance(every, int) and every > 0 and is_used:
            return ["full" if (index + 1) % every == 0 else word for index in range(n_layers)]
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset", 0)
    if isinstance(period, int) and period > 0:
        return ["full" if index % period == offset else "state" for index in range(n_layers)]
    return None


def _of_window(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    """A window for all layers: where the family always uses it, or the config says so (Qwen)."""
    if not config.get("sliding_window"):
        return None
    if config.get("use_sliding_window"):
        first = config.get("max_window_layers")
        return ["full" if isinstance(first, int) and index < first else "sliding" for index in range(n_layers)]
    return ["sliding"] * n_layers if config.get("sliding_window_is_all") else None


def build_layers(config: Mapping[str, Any], words: list[str]) -> Iterator[Layer]:
    """The layers of a config whose absent keys have been filled in."""
    shape = _state_shape(config) if {"state", "both"} & set(words) else None
    ratios = config.get("compress_ratios")
    n_shared = int(config.get("num_kv_shared_layers") or 0)
    if n_shared >= len(words):
        raise UnexpectedAnswer(f"config.json: num_kv_shared_layers is {n_shared} of {len(words)} layers")
    first_shared = len(words) - n_shared
    for index, word in enumerate(words):
        if isinstance(ratios, list) and index < len(ratios):
            yield _compressed(config, ratios[index])
        elif word == "state":
            yield Layer(kind="state", state=shape)
        elif word == "none":
            yield Layer(kind="none")
        else:
            layer = _attention(config, word)
            if word == "both":
                layer = layer.model_copy(update={"state": shape, "has_state_too": True})
            at_boundary = not shape and not 2 <= index < len(words) - 2
            yield layer.model_copy(update={"is_cache_shared": index >= first_shared, "is_boundary": at_boundary})


def _attention(config: Mapping[str, Any], word: str) -> Layer:
    if latent := int(config.get("kv_lora_rank") or 0):
        width = latent + int(config.get("qk_rope_head_dim") or 0)
        sparse = bool(config.get("index_topk"))
        return Layer(kind="sparse_mla" if sparse else "mla", n_kv_heads=1, latent_dim=width, has_indexer=sparse)
    heads, dim = int(config["num_key_value_heads"]), int(config["head_dim"])
    if word == "sliding":
        return Layer(kind="sliding", n_kv_heads=heads, head_dim=dim, window=_window(config, "sliding_window"))
    if word == "chunked":
        return Layer(kind="chunked", n_kv_heads=heads, head_dim=dim, window=_window(config, "attention_chunk_size"))
    heads = int(config.get("num_global_key_value_heads") or heads)
    dim = int(config.get("global_head_dim") or config.get("attention_head_dim") or dim)
    return Layer(kind="full", n_kv_heads=heads, head_dim=dim)


def _window(config: Mapping[str, Any], key: str) -> int:
    size = config.get(key)
    if not isinstance(size, int) or size <= 0:
        raise UnexpectedAnswer(f"config.json: its layer types need {key}, which is {size!r}")
    return size


def _compressed(config: Mapping[str, Any], ratio: Any) -> Layer:
    """DeepSeek-V4: one latent entry per `ratio` tokens; 0 is a layer with its window of 128 tokens only."""
    if not isinstance(ratio, int) or ratio < 0:
        raise UnexpectedAnswer(f"config.json: compress_ratios has {ratio!r}, a number of tokens is needed")
    dim = int(config.get("head_dim") or 512)
    if ratio == 0:
        return Layer(kind="sliding", n_kv_heads=1, latent_dim=dim, window=int(config.get("sliding_window") or 128))
    return Layer(kind="mla", n_kv_heads=1, latent_dim=dim, ratio=ratio, has_indexer=ratio <= 4)


def _state_shape(config: Mapping[str, Any]) -> StateShape:
    """The state of a recurrent layer: gated delta net, KDA, Mamba 1 and 2, short convolution, lightning attention."""
    hidden = int(config["hidden_size"])
    in_bytes = {"float32": 4, "float16": 2, "bfloat16": 2}
    width = in_bytes.get(str(config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")), 0)
    width = width or int(config.get("recurrent_bytes") or 4)
    if config.get("linear_key_head_dim"):
        k_dim, v_dim = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
        keys, values = int(config["linear_num_key_heads"]) * k_dim, int(config["linear_num_value_heads"]) * v_dim
        conv = 2 * keys + values
        own = hidden * (conv + values + 2 * int(config["linear_num_value_heads"])) + values * hidden
        rows = int(config.get("linear_conv_kernel_dim") or 4) - 1
        return StateShape(
            conv_width=conv,
            conv_rows=rows,
            recurrent_elements=values * k_dim,
            recurrent_bytes=width,
            n_parameters=own + conv * (rows + 1),
        )
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping):
        heads, dim, kernel = (linear.get(key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
        if not isinstance(heads, int) or not isinstance(dim, int) or heads <= 0 or dim <= 0:
            raise UnexpectedAnswer(f"config.json: linear_attn_config has {heads!r} heads of {dim!r} values")
        inner = heads * dim
        rows = (kernel if isinstance(kernel, int) else 4) - 1
        own = 4 * hidden * inner + 2 * (hidden * dim + dim * inner)
        return StateShape(
            conv_width=3 * inner, conv_rows=rows, recurrent_elements=inner * dim, recurrent_bytes=4, n_parameters=own
        )
    return _mamba_shape(config, hidden, width)


def _mamba_shape(config: Mapping[str, Any], hidden: int, width: int) -> StateShape:
    state = config.get("mamba_d_state") or config.get("ssm_state_size") or config.get("mamba_state_dim")
    rows = int(config.get("mamba_d_conv") or config.get("conv_kernel") or config.get("conv_L_cache") or 4) - 1
    if not state:
        if config.get("conv_L_cache"):  # a short convolution and nothing else
            return StateShape(conv_width=hidden, conv_rows=rows, n_parameters=4 * hidden * hidden)
        inner = int(config["num_attention_heads"]) * int(config["head_dim"])  # lightning attention
        dim = int(config["head_dim"])
        return StateShape(recurrent_elements=inner * dim, recurrent_bytes=width, n_parameters=5 * hidden * inner)
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config.get("n_mamba_heads")
    size = config.get("mamba_d_head") or config.get("mamba_head_dim") or config.get("mamba_headdim")
    inner = int(heads) * int(size) if isinstance(heads, int) and isinstance(size, int) else 0
    inner = inner or int(config.get("mamba_d_ssm") or float(config.get("mamba_expand") or 2) * hidden)
    groups = config.get("mamba_n_groups") or config.get("n_groups") or config.get("mamba_ngroups")
    in_groups = 2 * int(groups) * int(state) if groups else 0
    n_heads = int(heads) if isinstance(heads, int) else 0
    own = hidden * (2 * inner + in_groups + n_heads) + inner * hidden + (0 if groups else 2 * inner * int(state))
    return StateShape(
        conv_width=inner + in_groups,
        conv_groups=in_groups,
        n_groups=int(groups or 1),
        conv_rows=rows,
        recurrent_elements=inner * int(state),
        recurrent_bytes=width,
        n_parameters=own,
    )
