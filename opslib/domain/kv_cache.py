"""How many bytes keys and values take: v1/kv_cache_interface.py."""

from opslib.domain.model_spec import ModelSpec
from opslib.domain.vllm_flags import ServeFlags

BLOCK_TOKENS = 16
_ONE_BYTE = ("fp8", "int8")


def bytes_per_token_of_layer(model: ModelSpec, flags: ServeFlags) -> int:
    """One attention layer's keys and values for one token on one rank.

    KV heads are replicated where there are fewer than ranks; a latent (MLA) is whole on every rank.
    """
    asked = str(flags.value("--kv-cache-dtype") or "auto")
    width = 1 if asked.startswith(_ONE_BYTE) or (asked == "auto" and model.has_fp8_kv_cache) else model.dtype_bytes
    if model.attention == "mla":
        return model.latent_dim * width
    return 2 * max(1, model.n_kv_heads // flags.tensor_parallel_size) * model.head_dim * width


def bytes_per_token(model: ModelSpec, flags: ServeFlags) -> int:
    """All full-attention layers of a rank (of its pipeline stage) for one token."""
    layers = -(-model.n_full_layers // flags.pipeline_parallel_size)
    return layers * bytes_per_token_of_layer(model, flags)


def request_bytes(model: ModelSpec, flags: ServeFlags, n_tokens: int) -> int:
    """What one request of `n_tokens` needs in whole blocks; sliding layers keep their window and what is in flight."""
    full = _blocks(n_tokens) * BLOCK_TOKENS * bytes_per_token(model, flags)
    if not model.n_sliding_layers or not model.sliding_window:
        return full
    kept = min(model.sliding_window - 1 + flags.max_num_batched_tokens, n_tokens)
    layers = -(-model.n_sliding_layers // flags.pipeline_parallel_size)
    return full + (_blocks(kept) + 1) * BLOCK_TOKENS * layers * bytes_per_token_of_layer(model, flags)


def largest_request(model: ModelSpec, flags: ServeFlags, available_bytes: float) -> int:
    """The longest request, in tokens, whose keys and values fit into `available_bytes`."""
    fits, too_long = 0, 2**31
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if request_bytes(model, flags, middle) <= available_bytes:
            fits = middle
        else:
            too_long = middle
    return fits


def _blocks(n_tokens: int) -> int:
    return -(-n_tokens // BLOCK_TOKENS)
