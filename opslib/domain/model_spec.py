"""What a model's config.json says that decides memory: layers, heads, vocabulary, experts, quantization, drafts."""

from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.model_aliases import with_common_names
from opslib.domain.model_families import families, family_of
from opslib.domain.model_layers import Layer, build_layers, layer_words
from opslib.domain.model_numbers import DRAFTS, EXPERTS, LONGEST, refuse_odd_numbers
from opslib.domain.quantization import Quantization, read_quantization
from opslib.domain.states import Value
from opslib.domain.vllm_flags import merged
from opslib.errors import UnexpectedAnswer

_WIDTHS = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_NOT_EXTENDED = ("llama3", "longrope", "su", "default", "mrope")  # rope types whose limit includes the factor
_MOST_EXTENDED = 10_000  # times; more is a mistake
_MOE_LISTS = ("moe_layer_freq", "mlp_layer_types")  # one word or number per layer: which have experts
_NEVER_NULL = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


class MoeShape(Value):
    """The experts of a layer that has some; `n_moe_layers` of the model's layers do."""

    n_experts: int
    experts_per_token: int
    intermediate_size: int
    n_moe_layers: int
    n_shared: int = 0
    shared_intermediate_size: int = 0


class ModelSpec(Value):
    """The dimensions of a model that decide memory; `is_known` False asks for a wider band."""

    architecture: str
    model_type: str
    is_known: bool
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int
    max_position_embeddings: int | None
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()  # multi-token prediction, part of the checkpoint
    moe: MoeShape | None = None
    quantization: Quantization = Quantization()
    is_packed_on_load: bool = False  # the quantization is asked for by a flag; the file may hold plain weights
    dtype_bytes: int = 2
    is_tied: bool = False
    is_multimodal: bool = False
    vision_parameters: int = 0
    traits: Mapping[str, Any] = {}  # the family's own ways, and the dimensions of its attention projections
    assumed: tuple[str, ...] = ()  # deciding keys that the config lacks: the family's default is taken

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_full_layers(self) -> int:
        """Layers that keep something of every token."""
        return sum(layer.kind in {"full", "mla", "sparse_mla"} for layer in self.layers)

    @property
    def n_sliding_layers(self) -> int:
        return sum(layer.kind in {"sliding", "chunked"} for layer in self.layers)

    @property
    def n_state_layers(self) -> int:
        return sum(layer.state is not None for layer in self.layers)

    @property
    def is_mla(self) -> bool:
        """Whether attention keeps a latent that every tensor-parallel rank holds whole."""
        return any(layer.kind in {"mla", "sparse_mla"} for layer in self.layers)

    @property
    def n_experts(self) -> int:
        return self.moe.n_experts if self.moe else 0


def parse_model_config(config: Mapping[str, Any]) -> ModelSpec:
    """Reads config.json; a nested text config counts, an absent key takes its family's default.

    Raises UnexpectedAnswer naming the deciding key that is missing or makes no sense (zero heads, a negative size).
    """
    try:
        return _parsed(config)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise UnexpectedAnswer(f"config.json can't be read: {type(error).__name__} {error}") from error


def overridden(config: Mapping[str, Any], overrides: object) -> Mapping[str, Any]:
    """The config with --hf-overrides in it, as vLLM joins them; anything but an object changes nothing."""
    return merged(config, overrides) if isinstance(overrides, Mapping) else config


def _parsed(config: Mapping[str, Any]) -> ModelSpec:
    named = config.get("architectures") or ["unknown"]
    architecture = str(named[0] if isinstance(named, list | tuple) else named)
    text = _text_config(config)
    family = family_of(architecture, config.get("model_type"), text.get("model_type"))
    filled, assumed = _filled(text, families().get(family or "", {}), family)
    layers = tuple(build_layers(filled, layer_words(filled, filled["num_hidden_layers"])))
    quantized = text.get("quantization_config") or config.get("quantization_config") or {}
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or config.get("dtype")
    multimodal = bool(filled.get("vision_parameters")) or "vision_config" in config or "audio_config" in config
    return ModelSpec(
        architecture=architecture,
        model_type=family or str(text.get("model_type") or config.get("model_type") or architecture),
        is_known=family is not None and not _is_guessed(filled, family, layers),
        hidden_size=filled["hidden_size"],
        n_heads=filled["num_attention_heads"],
        n_kv_heads=filled["num_key_value_heads"],
        head_dim=filled["head_dim"],
        vocab_size=filled["vocab_size"],
        intermediate_size=filled["intermediate_size"],
        max_position_embeddings=_longest(filled),
        layers=layers,
        draft_layers=_drafts(filled, layers),
        moe=_moe(filled),
        quantization=read_quantization(quantized),
        dtype_bytes=_WIDTHS.get(str(dtype).removeprefix("torch."), 2),
        is_tied=bool(filled.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        is_multimodal=multimodal,
        vision_parameters=_vision(config, filled) if multimodal else 0,
        traits={key: value for key, value in filled.items() if isinstance(value, bool | int | float | str)},
        assumed=tuple(assumed),
    )


def _is_guessed(filled: Mapping[str, Any], family: str, layers: tuple[Layer, ...]) -> bool:
    """Whether layers with a state were read without the family having any, or the config saying their sizes."""
    told = ("linear_key_head_dim", "linear_attn_config", "mamba_d_state", "ssm_state_size", "conv_L_cache")
    has_states = any(layer.state for layer in layers)
    return has_states and not family.startswith("minimax") and not any(filled.get(key) for key in told)


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; what only the outer config says stays visible."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(inner := config.get(key), Mapping):
            inner = _text_config(inner)
            outer = {name: value for name, value in config.items() if name in {"tie_word_embeddings", "torch_dtype"}}
            return {**outer, **inner}
    return config


def _filled(text: Mapping[str, Any], row: Mapping[str, Any], family: str | None) -> tuple[dict[str, Any], list[str]]:
    """The config with its family's defaults for what is absent, checked; and which deciding keys were."""
    present = _present(text, family)
    filled: dict[str, Any] = {**row, **present, "family": family}
    derived = {
        "num_attention_heads": filled.get("n_heads"),
        "num_key_value_heads": filled.get("num_attention_heads"),
        "intermediate_size": filled.get("moe_intermediate_size") or _times(filled.get("hidden_size"), 4),
        "head_dim": _times(filled.get("hidden_size"), 1, filled.get("num_attention_heads")),
    }
    for key, value in derived.items():
        if filled.get(key) is None and value is not None:
            filled[key] = value
    for key in _NEVER_NULL:
        if key in text and text[key] is None:
            filled[key] = None
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", *derived)
    for key in needed:
        filled[key] = _size(filled, key)
    told = ("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers", "kv_lora_rank")
    return filled, [key for key in told if key in row and key not in present]


def _present(text: Mapping[str, Any], family: str | None) -> dict[str, Any]:
    """What the config says, without what it says to have none of."""
    named = with_common_names(text)
    refuse_odd_numbers(named)
    present = {key: value for key, value in named.items() if value is not None}
    if "dual_chunk_attention_config" in present:
        present.pop("sliding_window", None)
    if present.get("use_sliding_window") is False or (family and text.get("sliding_window", 0) is None):
        present["sliding_window"] = None
    return present


def _times(value: Any, factor: int, divisor: Any = 1) -> int | None:
    is_usable = isinstance(value, int) and isinstance(divisor, int) and divisor > 0
    return max(1, value * factor // divisor) if is_usable else None


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, list) and value:
        value = max(value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnexpectedAnswer(f"config.json: {key} is {value!r}, a positive number is needed")
    return value


def _longest(config: Mapping[str, Any]) -> int | None:
    """The model's limit of positions, scaled as vLLM scales it (vllm/config/model.py `_get_and_verify_max_len`)."""
    given = [int(config[key]) for key in LONGEST if isinstance(config.get(key), int) and config[key] > 0]
    if not given:
        return None
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, Mapping) or not isinstance(factor := rope.get("factor"), int | float):
        return min(given)
    if not 0 < factor <= _MOST_EXTENDED:
        raise UnexpectedAnswer(f"config.json: the factor of its rope scaling is {factor!r}")
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind in _NOT_EXTENDED or "gemma3" in str(config.get("family")):
        return min(given)
    base = rope.get("original_max_position_embeddings") if kind in {"yarn", "deepseek_yarn"} else None
    base = base if isinstance(base, int) and base > 0 else None
    return max(int((base or min(given)) * factor), min(given) if base else 0)


def _drafts(config: Mapping[str, Any], layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    number = next((int(config[key]) for key in DRAFTS if isinstance(config.get(key), int)), 0)
    attention = [layer for layer in layers if layer.kind not in {"state", "none", "sliding", "chunked"}]
    return tuple(attention[-1:]) * max(0, number)


def _moe(config: Mapping[str, Any]) -> MoeShape | None:
    n_experts = next((int(config[key]) for key in EXPERTS if isinstance(config.get(key), int) and config[key] > 1), 0)
    if not n_experts:
        return None
    inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    n_shared = int(config.get("n_shared_experts") or config.get("num_shared_experts") or 0)
    shared = config.get("shared_expert_intermediate_size") or config.get("shared_intermediate_size")
    return MoeShape(
        n_experts=n_experts,
        experts_per_token=int(
            config.get("num_experts_per_tok") or config.get("top_k_experts") or config.get("moe_topk") or 1
        ),
        intermediate_size=inner,
        n_moe_layers=sum(_moe_layers(config)),
        n_shared=n_shared or (1 if shared else 0),
        shared_intermediate_size=int(shared or (inner if n_shared else 0)),
    )


def _moe_layers(config: Mapping[str, Any]) -> Iterator[bool]:
    first, period = int(config.get("first_k_dense_replace") or 0), int(config.get("moe_layer_freq_step") or 1)
    offset = 0
    if isinstance(config.get("expert_layer_period"), int):
        period, offset = int(config["expert_layer_period"]), int(config.get("expert_layer_offset") or 0)
    if isinstance(step := config.get("interleave_moe_layer_step"), int) and step > 0:
        period, offset = step, step - 1
    told = next((kinds for key in _MOE_LISTS if isinstance(kinds := config.get(key), list)), None)
    if told is not None and len(told) >= config["num_hidden_layers"]:
        yield from (kind in {1, "sparse", "moe"} for kind in told[: config["num_hidden_layers"]])
        return
    if (step := int(config.get("decoder_sparse_step") or 1)) > 1:
        period, offset = step, step - 1
    dense = config.get("mlp_only_layers")
    pattern = config.get("hybrid_override_pattern")
    for index in range(config["num_hidden_layers"]):
        if isinstance(pattern, str):
            yield pattern.replace("|", "")[index : index + 1] == "E"
        else:
            is_dense = index < first or (isinstance(dense, list) and index in dense)
            yield not is_dense and index % period == offset % period


def _vision(config: Mapping[str, Any], filled: Mapping[str, Any]) -> int:
    """Parameters of the vision tower: counted from its own config, else the family's known figure."""
    vision = config.get("vision_config")
    if isinstance(vision, Mapping) and (hidden := vision.get("hidden_size") or vision.get("embed_dim")):
        depth = vision.get("num_hidden_layers") or vision.get("depth") or vision.get("num_layers") or 24
        inner = vision.get("intermediate_size") or 4 * int(hidden)
        if all(isinstance(size, int) for size in (hidden, depth, inner)):
            gates = 3 if vision.get("hidden_act") == "silu" else 2
            return int(depth * (4 * hidden * hidden + gates * hidden * inner))
    return int(filled.get("vision_parameters") or 0)
