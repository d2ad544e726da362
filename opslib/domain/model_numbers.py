"""The numbers of a config.json that decide memory, and which values of them a model can have."""

from collections.abc import Mapping
from typing import Any

from opslib.errors import UnexpectedAnswer

EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
NUMBERS = frozenset({
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("intermediate_size_mlp", "moe_intermediate_size", "num_experts_per_tok", "moe_topk", "top_k_experts"),
    *("sliding_window", "attention_chunk_size", "full_attention_interval", "sliding_window_pattern"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    *("index_topk", "index_head_dim", "index_n_heads", "global_head_dim", "attention_head_dim"),
    *("num_global_key_value_heads", "n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"),
    *("shared_intermediate_size", "first_k_dense_replace", "expert_layer_period", "expert_layer_offset"),
    *("interleave_moe_layer_step", "no_rope_layer_interval", "attn_layer_period", "attn_layer_offset"),
    *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads"),
    *("linear_num_value_heads", "mamba_d_state", "ssm_state_size", "mamba_d_conv", "conv_kernel", "conv_L_cache"),
    *("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    *("v_head_dim", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"),
    *("num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input", "decoder_sparse_step"),
    *("mamba_n_groups", "n_groups", "mamba_ngroups", "mamba_d_ssm", "num_mem_blocks", "max_window_layers"),
    *EXPERTS,
    *DRAFTS,
    *LONGEST,
})  # fmt: skip
_MOST = {"num_hidden_layers": 2000, **dict.fromkeys(DRAFTS, 64)}


def refuse_odd_numbers(config: Mapping[str, Any]) -> None:
    """Raise UnexpectedAnswer naming a number that no model can have; null and "auto" mean absent."""
    for key in NUMBERS & config.keys():
        value = config[key]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None or value == "auto" or (is_whole and 0 <= value <= _MOST.get(key, 2**40)):
            continue
        raise UnexpectedAnswer(f"config.json: {key} is {value!r}, a number that a model can have is needed")
