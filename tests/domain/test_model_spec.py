"""config.json, read into what decides memory."""

import pytest

from opslib.domain.engine_defaults import read_engine_version
from opslib.domain.kv_cache import bytes_per_token
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments
from opslib.errors import UnexpectedAnswer
from tests.memory_cases import MINIMAX

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "vocab_size": 129280, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 256, "num_experts_per_tok": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "line", "expected"),
    [
        (LLAMA, "", 32 * 2 * 8 * 128 * 2),
        (LLAMA, "-tp 2", 32 * 2 * 4 * 128 * 2),
        (LLAMA, "-tp 16", 32 * 2 * 1 * 128 * 2),  # fewer heads than ranks: replicated
        (LLAMA, "--kv-cache-dtype fp8", 32 * 2 * 8 * 128),
        ({**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "", 32 * 2 * 8 * 128),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "", 32 * 2 * 8 * 128 * 2),
        (DEEPSEEK, "-tp 8", 70272),  # the latent is whole on every rank
        (MINIMAX, "-tp 4", 63488),
        ({**LLAMA, "head_dim": 64}, "", 32 * 2 * 8 * 64 * 2),
    ],
)
def test_bytes_per_token(config, line, expected):
    """v1/kv_cache_interface.py: heads per rank x head dims x width, or the latent."""
    flags = parse_serve_arguments(line.split())
    assert bytes_per_token(parse_model_config(config), flags, read_engine_version("0.20")) == expected


def test_a_nested_text_config_counts():
    """Multimodal configs keep the language model inside."""
    spec = parse_model_config(
        {"architectures": ["XForConditionalGeneration"], "text_config": LLAMA, "vision_config": {}}
    )
    assert (spec.n_layers, spec.is_multimodal, spec.is_known) == (32, True, True)


def test_sliding_layers_are_told_from_full_ones():
    """layer_types counts; without it, a pattern."""
    spec = parse_model_config(
        {**LLAMA, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}
    )
    assert (spec.n_sliding_layers, spec.n_full_layers) == (16, 16)
    assert parse_model_config({**LLAMA, "sliding_window": 1024, "sliding_window_pattern": 6}).n_full_layers == 5


def test_an_unknown_architecture_says_so():
    """Its plan gets a wider band."""
    assert not parse_model_config({**LLAMA, "model_type": "novel", "architectures": ["NovelForCausalLM"]}).is_known
    assert not parse_model_config({**LLAMA, "layer_types": ["linear_attention"] * 32}).is_known


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 0}, {"vocab_size": -1}, {"hidden_size": "big"}, {"num_hidden_layers": None}]
)
def test_nonsense_is_refused_by_name(change):
    """Zero heads and negative sizes are answered, not computed with."""
    with pytest.raises(UnexpectedAnswer, match=next(iter(change))):
        parse_model_config({**LLAMA, **change})
