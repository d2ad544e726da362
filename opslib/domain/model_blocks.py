"""Layers that a search has made unlike each other (Nemotron-NAS): each says what it has.

Source: vllm/model_executor/models/nemotron_nas.py.
"""

from collections.abc import Mapping
from typing import Any


def words_of_blocks(config: Mapping[str, Any], n_layers: int) -> list[str] | None:
    """Nemotron-NAS: each layer says whether it has attention."""
    blocks = config.get("block_configs")
    del n_layers
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return None
    return ["none" if _skips(block.get("attention")) else "full" for block in blocks]


def _skips(part: object) -> bool:
    return isinstance(part, Mapping) and bool(part.get("no_op") or part.get("replace_with_linear"))


def own_sizes(config: Mapping[str, Any], index: int) -> dict[str, int]:
    """KV heads and feed-forward width of one layer, where they differ: `_ffn_mult_to_intermediate_size`."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list):
        return {}
    attention, ffn = (blocks[index].get(part) or {} for part in ("attention", "ffn"))
    hidden, heads, factor = int(config["hidden_size"]), int(config["num_attention_heads"]), ffn.get("ffn_mult")
    width = int(ffn.get("intermediate_size") or 2 * float(factor or 0) * hidden / 3)
    group = attention.get("n_heads_in_group")
    own = {"feed_forward": 0 if _skips(ffn) else -(-width // 256) * 256}
    return own | ({"n_kv_heads": heads // group} if isinstance(group, int) and group > 0 else {})
