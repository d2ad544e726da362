"""How a checkpoint's weights are packed: bits per weight, which parts stay as they were, the cache's scheme."""

from collections.abc import Mapping
from typing import Any, Literal

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

Scope = Literal["all", "mlp", "experts"]
# method -> (bits per weight with scales, bits by default?, what is packed)
_BITS: dict[str, tuple[float, Scope]] = {
    "fp8": (8.0, "all"), "fbgemm_fp8": (8.0, "mlp"), "ptpc_fp8": (8.0, "all"), "compressed-tensors": (8.0, "all"),
    "modelopt": (8.0, "all"), "modelopt_fp4": (4.5, "all"), "modelopt_mixed": (5.0, "all"), "nvfp4": (4.5, "all"),
    "petit_nvfp4": (4.5, "all"), "mxfp4": (4.25, "experts"), "gpt_oss_mxfp4": (4.25, "experts"), "mxfp8": (8.25, "all"),
    "awq": (4.156, "all"), "awq_marlin": (4.156, "all"), "gptq": (4.156, "all"), "gptq_marlin": (4.156, "all"),
    "auto-round": (4.156, "all"), "auto_round": (4.156, "all"), "inc": (4.156, "all"), "moe_wna16": (4.156, "all"),
    "bitsandbytes": (4.127, "all"), "gguf": (4.8, "all"), "torchao": (8.0, "all"), "quark": (8.0, "all"),
    "experts_int8": (8.0, "experts"), "hqq": (4.25, "all"), "aqlm": (2.3, "all"), "bitblas": (4.156, "all"),
    "gptq_bitblas": (4.156, "all"), "marlin": (4.156, "all"), "deepspeedfp": (8.0, "all"), "tpu_int8": (8.0, "all"),
    "fp_quant": (4.5, "all"), "cpu_awq": (4.156, "all"), "rtn": (8.0, "all"), "deepseek_v4_fp8": (8.0, "all"),
    "w4a16": (4.156, "all"), "w8a8": (8.0, "all"), "w8a16": (8.0, "all"),
}  # fmt: skip
# methods whose checkpoints often keep attention as it was, and say so in their config
_PARTIAL = ("compressed-tensors", "modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4", "quark", "fp8", "w4a16")
_ATTENTION_WORDS = ("self_attn", "attn.", "attention", "q_proj")
_FOUR_BIT_WORDS = ("nvfp4", "fp4", "pack-quantized", "w4a16", "int4")


class Quantization(Value):
    """The method (None: none), its bits per weight, what it packs, and whether the KV cache has a scheme of its own."""

    method: str | None = None
    bits: float = 16.0
    scope: Scope = "all"
    has_fp8_kv_cache: bool = False
    keeps_attention: bool = False  # attention projections stay in the model's dtype
    is_explicit: bool = False  # the config says which layers are packed
    attention_bits: float | None = None  # of attention projections where another group of the config packs them
    is_grouped: bool = False  # 4 bits with scales per group, whose size the config doesn't say


def method_name(text: str) -> str | None:
    """A method as vLLM names it, None where it knows none of that name.

    >>> method_name("awq 4bit"), method_name("FP8"), method_name("zip")
    ('awq', 'fp8', None)
    """
    word = (text.strip().lower().split() or [""])[0].strip("(),;")
    return word if word in _BITS else None


def read_quantization(config: object, flag: str | None = None) -> Quantization:
    """What a quantization_config, or the flag --quantization on a plain checkpoint, makes of the weights.

    Raises UnexpectedAnswer for a method that vLLM doesn't know.
    """
    if config and not isinstance(config, Mapping):
        raise UnexpectedAnswer(f"config.json: quantization_config is {config!r}, an object is needed")
    given = config if isinstance(config, Mapping) else {}
    named = given.get("quant_method") or ("w4a16" if given.get("bits") == 4 else None) or flag
    scheme = given.get("kv_cache_scheme") or given.get("kv_cache_quant_algo")
    if not named:
        return Quantization(has_fp8_kv_cache=bool(scheme))
    method = method_name(str(named))
    if method is None:
        raise UnexpectedAnswer(f"the quantization method {named!r} is not known to vLLM")
    bits, scope = _BITS[method]
    words = " ".join(str(given.get(key, "")) for key in ("format", "quant_algo", "fmt", "note")).lower()
    if any(word in words for word in _FOUR_BIT_WORDS):
        bits = 4.5 if "fp4" in words else 4.156
    if method.startswith("modelopt") and "mixed" in words:
        bits = _BITS["modelopt_mixed"][0]
    bits, attention = _group_bits(given, bits)
    excluded = str(given.get("ignore") or given.get("modules_to_not_convert") or given.get("exclude_modules") or "")
    return Quantization(
        method=method,
        bits=bits,
        scope="mlp" if method == "fbgemm_fp8" else scope,
        has_fp8_kv_cache=bool(scheme),
        is_explicit=bool(
            method not in _PARTIAL or excluded or given.get("weight_block_size") or given.get("config_groups")
        ),
        attention_bits=attention,
        is_grouped=4.1 < bits < 4.2 and not (given.get("group_size") or given.get("q_group_size")),
        keeps_attention=_names_any(excluded, _ATTENTION_WORDS),
    )


def _group_bits(given: Mapping[str, Any], bits: float) -> tuple[float, float | None]:
    """Bits that the config states, with 16-bit scales (and zero points) per group; attention's where they differ."""
    groups = given.get("config_groups")
    named = groups.values() if isinstance(groups, Mapping) else ()
    stated = [pair for group in named if (pair := _of_group(group))]
    if stated:
        attention = next((own for targets, own in stated if _names_any(targets, _ATTENTION_WORDS)), None)
        rest = [own for targets, own in stated if not _names_any(targets, _ATTENTION_WORDS)] or [stated[0][1]]
        return rest[0], attention if attention != rest[0] else None
    width = given.get("bits") or given.get("w_bit")
    if not isinstance(width, int) or not 1 <= width <= 16:
        return bits, None
    if width == 8:
        return 8.0 if bits in {8.0, 4.127} else 8.156, None
    return bits if int(bits) == width else width + 0.156, None


def _of_group(group: object) -> tuple[str, float] | None:
    """What a group of compressed-tensors packs, in its words, and with how many bits."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(width := weights.get("num_bits"), int):
        return None
    targets = str(group.get("targets") or "") if isinstance(group, Mapping) else ""
    size = weights.get("group_size")
    if width == 4 and weights.get("type") == "float":
        return targets, 4.5
    return targets, width + (16 / size if isinstance(size, int) and size > 0 else 0.0)


def _names_any(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
