"""A config's own names for what others call otherwise, and values that it gives once per layer.

Sources: `attribute_map` of transformers' `configuration_*.py`; vllm/transformers_utils/model_arch_config_convertor.py.
"""

from collections.abc import Mapping
from typing import Any

from opslib.domain.model_numbers import NUMBERS

_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_attention_groups", "multi_query_group_num", "n_head_kv", "num_kv_heads", "n_kv_heads"),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("kv_channels",),
    "num_experts_per_tok": ("moe_k", "moe_top_k"),
    "n_shared_experts": ("moe_num_shared_experts", "num_shared_expert"),
    "first_k_dense_replace": ("moe_layer_start_index",),
}
_PER_LAYER = NUMBERS | {"intermediate_size"}


def with_common_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config in the names that everything else reads; of a list with a number for each layer, the largest.

    >>> with_common_names({"n_layer": 12, "moe_topk": [8, 8], "sliding_window_pattern": "LLLG"})
    {'n_layer': 12, 'moe_topk': 8, 'sliding_window_pattern': 4, 'num_hidden_layers': 12}
    """
    named = {key: _one_number(key, value) for key, value in config.items()}
    if named.get("multi_query") is True and not named.get("new_decoder_architecture"):  # Falcon
        named["num_key_value_heads"] = 1
    for key, others in _ALIASES.items():
        if named.get(key) is None:
            found = next((named[other] for other in others if named.get(other) is not None), None)
            named |= {} if found is None or isinstance(found, list) else {key: found}
    return named


def _one_number(key: str, value: Any) -> Any:
    if key == "sliding_window_pattern" and isinstance(value, str):  # EXAONE: one letter per layer of a round
        return len(value) if set(value) <= {"L", "G"} else value
    is_list = key in _PER_LAYER and isinstance(value, list) and value
    if is_list and all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value):
        return max(value)
    return value
