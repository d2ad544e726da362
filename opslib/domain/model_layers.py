"""What each layer of a model keeps of the past: keys and values of all tokens, of a window, a latent, or a state.

Sources: the models' `modeling_*.py`/`configuration_*.py` in transformers;
vllm/model_executor/layers/mamba/mamba_utils.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from opslib.domain.model_blocks import own_sizes, words_of_blocks
from opslib.domain.model_states import StateShape, state_shape
from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

Kind = Literal["full", "sliding", "chunked", "mla", "sparse_mla", "state", "none"]
_STATE_WORDS = ("linear", "mamba", "conv", "kda", "delta", "recurrent", "lightning", "ssm")
INDEXER_BYTES = 132  # per token: 128 fp8 values of the indexer's key and a 4-byte scale


class Layer(Value):
    """One layer: what it keeps per token and per sequence."""

    kind: Kind
    n_kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0  # of a value, where it isn't a key's (MiMo-V2)
    feed_forward: int | None = None  # inner size where a layer has its own (Nemotron-NAS); None: the model's
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
    for read in (words_of_blocks, _of_types, _of_pattern_text, _of_lists, _of_interval, _of_window):
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
    """Nemotron-H: one letter per layer; M Mamba-2, * attention, - or E feed-forward alone. MiMo-V2: 1 is a window."""
    if isinstance(kinds := config.get("hybrid_layer_pattern"), list):
        return ["sliding" if kind else "full" for kind in kinds]
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
    shape = state_shape(config) if {"state", "both"} & set(words) else None
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
            yield Layer(kind="none").model_copy(update={**own_sizes(config, index), "n_kv_heads": 0})
        else:
            layer = _attention(config, word)
            if word == "both":
                layer = layer.model_copy(update={"state": shape, "has_state_too": True})
            at_boundary = not shape and not 2 <= index < len(words) - 2
            own = own_sizes(config, index)
            yield layer.model_copy(update={"is_cache_shared": index >= first_shared, "is_boundary": at_boundary, **own})


def _attention(config: Mapping[str, Any], word: str) -> Layer:
    if latent := int(config.get("kv_lora_rank") or 0):
        width = latent + int(config.get("qk_rope_head_dim") or 0)
        sparse = bool(config.get("index_topk"))
        return Layer(kind="sparse_mla" if sparse else "mla", n_kv_heads=1, latent_dim=width, has_indexer=sparse)
    heads, dim = int(config["num_key_value_heads"]), int(config["head_dim"])
    value = int(config.get("v_head_dim") or 0) if config.get("hybrid_layer_pattern") else 0
    if word == "sliding":
        heads, dim = int(config.get("swa_num_key_value_heads") or heads), int(config.get("swa_head_dim") or dim)
        value = int(config.get("swa_v_head_dim") or value)
        window = _window(config, "sliding_window")
        return Layer(kind="sliding", n_kv_heads=heads, head_dim=dim, value_dim=value, window=window)
    if word == "chunked":
        return Layer(kind="chunked", n_kv_heads=heads, head_dim=dim, window=_window(config, "attention_chunk_size"))
    heads = int(config.get("num_global_key_value_heads") or heads)
    dim = int(config.get("global_head_dim") or config.get("attention_head_dim") or dim)
    return Layer(kind="full", n_kv_heads=heads, head_dim=dim, value_dim=value)


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
