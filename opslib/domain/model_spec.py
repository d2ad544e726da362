"""What a model's config.json says that decides memory: attention, vocabulary, experts, quantization."""

from collections.abc import Mapping
from typing import Any, Literal

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

# model_type values whose memory follows the rules of this module; others are planned with a wider band
KNOWN = frozenset({
    *("llama", "mistral", "mistral3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3"),
    *("gemma3_text", "phi3", "gpt_oss", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "minimax_m2"),
})  # fmt: skip
_STATE_WORDS = ("linear", "mamba", "conv")  # of layer_types: layers with a state instead of keys and values
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_WIDTHS = {"float32": 4, "float": 4, "float16": 2, "bfloat16": 2}


class ModelSpec(Value):
    """The dimensions of a model that decide memory; `is_known` False asks for a wider band."""

    architecture: str
    model_type: str
    is_known: bool
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int
    max_position_embeddings: int | None
    attention: Literal["gqa", "mla"] = "gqa"
    latent_dim: int = 0  # kv_lora_rank + qk_rope_head_dim
    sliding_window: int | None = None
    n_sliding_layers: int = 0
    n_state_layers: int = 0
    n_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    quantization: str | None = None
    has_fp8_kv_cache: bool = False
    dtype_bytes: int = 2
    is_tied: bool = False
    is_multimodal: bool = False

    @property
    def n_full_layers(self) -> int:
        """Layers that keep keys and values of every token."""
        return self.n_layers - self.n_sliding_layers - self.n_state_layers


def parse_model_config(config: Mapping[str, Any]) -> ModelSpec:
    """Reads config.json; of a multimodal config the nested text config counts.

    Raises UnexpectedAnswer naming the key that is missing or makes no sense (zero heads, a negative size).
    """
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    assert isinstance(text, Mapping)
    architecture = next(iter(config.get("architectures") or ["unknown"]))
    model_type = str(text.get("model_type") or config.get("model_type") or _guess_type(str(architecture)))
    n_layers, n_heads = _size(text, "num_hidden_layers"), _size(text, "num_attention_heads")
    hidden = _size(text, "hidden_size")
    kinds = _layer_kinds(text, n_layers)
    quantization = text.get("quantization_config") or config.get("quantization_config") or {}
    latent = int(text.get("kv_lora_rank") or 0)
    n_experts = next((int(text[key]) for key in _EXPERTS if text.get(key)), 0)
    return ModelSpec(
        architecture=str(architecture),
        model_type=model_type,
        is_known=model_type.removesuffix("_text") in KNOWN and not kinds["state"],
        n_layers=n_layers,
        hidden_size=hidden,
        n_heads=n_heads,
        n_kv_heads=_size(text, "num_key_value_heads", n_heads),
        head_dim=_size(text, "head_dim", max(1, hidden // n_heads)),
        vocab_size=_size(text, "vocab_size"),
        intermediate_size=_size(text, "intermediate_size", 4 * hidden),
        max_position_embeddings=text.get("max_position_embeddings"),
        attention="mla" if latent else "gqa",
        latent_dim=latent + int(text.get("qk_rope_head_dim") or 0) if latent else 0,
        sliding_window=text.get("sliding_window") if kinds["sliding"] else None,
        n_sliding_layers=kinds["sliding"],
        n_state_layers=kinds["state"],
        n_experts=n_experts,
        experts_per_token=int(text.get("num_experts_per_tok") or 0) if n_experts else 0,
        moe_intermediate_size=int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0),
        quantization=quantization.get("quant_method"),
        has_fp8_kv_cache=bool(quantization.get("kv_cache_scheme")),
        dtype_bytes=_WIDTHS.get(str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")), 2),
        is_tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        is_multimodal="vision_config" in config or "audio_config" in config,
    )


def _guess_type(architecture: str) -> str:
    """The model_type that an architecture's name hints at: "MiniMaxM2ForCausalLM" to "minimax_m2"."""
    squeezed = {name.replace("_", ""): name for name in KNOWN}
    stem = architecture.lower().partition("for")[0]
    return squeezed.get(stem, stem)


def _size(config: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None and otherwise is not None:
        value = otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnexpectedAnswer(f"config.json: {key} is {value!r}, a positive number is needed")
    return value


def _layer_kinds(config: Mapping[str, Any], n_layers: int) -> dict[str, int]:
    """How many layers look only at a window, and how many keep a state; all others are full attention."""
    types = config.get("layer_types")
    if isinstance(types, list):
        state = sum(any(word in str(kind) for word in _STATE_WORDS) for kind in types)
        return {"sliding": sum("sliding" in str(kind) or "chunked" in str(kind) for kind in types), "state": state}
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1 and config.get("sliding_window"):
        return {"sliding": n_layers - n_layers // pattern, "state": 0}
    uses_window = config.get("sliding_window") and config.get(
        "use_sliding_window", config.get("model_type") == "mistral"
    )
    return {"sliding": n_layers if uses_window else 0, "state": 0}
