"""Configs with names, lists and layers of their own, held to the sizes that their models are published with."""

import pytest

from opslib.domain.memory import plan_memory
from opslib.domain.model_aliases import with_common_names
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments
from opslib.errors import UnexpectedAnswer
from tests.memory_cases import GIB

MIMO = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, *[1] * 4, *[0, 1, 1, 1, 1, 1] * 7, 0],
    "sliding_window": 128,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_layer_freq": [0, *[1] * 47],
    "vocab_size": 152576,
    "max_position_embeddings": 262144,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
HUNYUAN = {
    "model_type": "hunyuan_v1_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "moe_intermediate_size": [3072] * 32,
    "num_experts": 64,
    "moe_topk": [8] * 32,
    "num_shared_expert": [1] * 32,
    "vocab_size": 128167,
    "tie_word_embeddings": True,
}
ERNIE = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "vocab_size": 103424,
    "tie_word_embeddings": True,
}
CHATGLM = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "num_layers": 40,
    "num_attention_heads": 32,
    "multi_query_group_num": 2,
    "kv_channels": 128,
    "ffn_hidden_size": 13696,
    "padded_vocab_size": 151552,
    "seq_length": 131072,
}
EXAONE = {
    "model_type": "exaone4",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 27392,
    "vocab_size": 102400,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "max_position_embeddings": 131072,
}
BLOCKS = [
    {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 2.625}},
    {"attention": {"n_heads_in_group": 16}, "ffn": {"ffn_mult": None, "no_op": True}},
]
NAS = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "vocab_size": 128256,
    "block_configs": BLOCKS,
}


@pytest.mark.parametrize(
    ("config", "gigabytes"),
    [(MIMO, 312.0), (HUNYUAN, 160.0), (ERNIE, 43.7), (CHATGLM, 18.8), (EXAONE, 64.0)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_weights_are_counted_as_published(config, gigabytes):
    """Within 2 % of the files' sizes."""
    flags = parse_serve_arguments([], engine_version="0.15.1", gpu_total_bytes=1000 * GIB)
    model = parse_model_config(config)
    plan = plan_memory(model, flags, weights=None, gpu_total_bytes=1000 * GIB, engine_version="0.15.1")
    assert model.is_known
    assert plan.weights_by_stage_bytes[0] / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_a_window_can_have_heads_and_values_of_its_own():
    """MiMo-V2: keys of 192 and values of 128, twice the KV heads in its windows; a list says which layers have experts."""
    model = parse_model_config(MIMO)
    full, window = model.layers[0], model.layers[1]
    assert (full.kind, full.n_kv_heads, full.head_dim, full.value_dim) == ("full", 4, 192, 128)
    assert (window.kind, window.n_kv_heads, window.head_dim, window.value_dim) == ("sliding", 8, 192, 128)
    assert (model.n_full_layers, model.moe.n_moe_layers) == (9, 47)


def test_layers_that_a_search_made_say_what_they_have():
    """Nemotron-NAS: KV heads and feed-forward width per layer, some without attention."""
    layers = parse_model_config(NAS).layers
    assert [(layer.kind, layer.n_kv_heads, layer.feed_forward) for layer in layers] == [
        ("full", 8, 28672),
        ("none", 0, 14336),
        ("full", 4, 0),
    ]


def test_the_common_name_goes_before_another():
    """What a config says under its usual name isn't overruled."""
    assert with_common_names({"num_hidden_layers": 4, "n_layer": 9})["num_hidden_layers"] == 4
    assert with_common_names({"multi_query": True, "n_head": 71})["num_key_value_heads"] == 1


@pytest.mark.parametrize("changes", [{"moe_topk": [8, "x"]}, {"num_experts": []}, {"sliding_window_pattern": "LXG"}])
def test_lists_and_letters_that_make_no_sense_are_refused_by_name(changes):
    """A list counts only where every entry is a number."""
    with pytest.raises(UnexpectedAnswer, match=next(iter(changes))):
        parse_model_config({**HUNYUAN, **changes})
