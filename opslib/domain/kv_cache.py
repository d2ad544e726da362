"""Blocks, groups and tokens of the KV cache of one rank, as vLLM lays them out by version.

Sources: vllm/v1/core/kv_cache_utils.py (`get_kv_cache_groups`, `_get_kv_cache_groups_uniform_page_size`);
vllm/platforms/interface.py `_align_hybrid_block_size`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from opslib.domain.engine_defaults import EngineVersion
from opslib.domain.kv_pages import state_bytes, token_bytes
from opslib.domain.model_layers import Layer
from opslib.domain.model_spec import ModelSpec
from opslib.domain.serve_flags import ServeFlags

BLOCK_TOKENS = 16
_HYBRID_SINCE = (0, 10, 0)  # before, window and chunk layers were charged as full attention
_CHUNKED_SINCE = (0, 14, 0)  # before, chunked layers switched the hybrid manager off (a latency regression)
_ALIGN_SINCE = (0, 14, 0)  # prefix caching of states ("align" mode)
_CACHED_BY_DEFAULT_SINCE = (0, 26, 0)  # config/model.py `is_prefix_caching_supported` of hybrids: not in 0.24.0
_ALL_STATES_UNTIL = (0, 28, 0)  # models/config.py `MambaModelConfig`: "all" where the model can, in 0.27.0 still
_KEEPS_ALL_STATES = {"falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "zamba2"}  # SupportsMambaPrefixCaching
_IN_FLIGHT_SINCE = (0, 26, 0)  # before, windows and chunks kept one batch beside them (not in 0.25.1)
_V2_RUNNER_SINCE = (0, 32, 0)
_TOKENS_BY_CONCURRENCY_SINCE = (0, 20, 1)


class Group(NamedTuple):
    """Layers of one kind that share a block table."""

    kind: str
    window: int
    block_tokens: int
    n_groups: int


class Pool(NamedTuple):
    """The cache of one rank: what a block takes in bytes, and the groups that draw from it."""

    bytes_per_block: float
    groups: tuple[Group, ...]
    is_hybrid: bool
    notes: tuple[str, ...] = ()

    @property
    def n_groups(self) -> int:
        return sum(group.n_groups for group in self.groups)

    @property
    def block_tokens(self) -> int:
        """The smallest block of the groups, in tokens."""
        return min((group.block_tokens for group in self.groups), default=BLOCK_TOKENS)


class Demand(NamedTuple):
    """What decides a request's blocks besides its length."""

    in_flight: int  # max_num_batched_tokens
    state_blocks: int
    context_parallel: int
    has_all_states: bool = False  # a state per block of the request, not only the newest


def make_pool(model: ModelSpec, layers: Sequence[Layer], flags: ServeFlags, version: EngineVersion) -> Pool:
    """The pool for the layers of one rank (of its pipeline stage, with drafts on the last)."""
    block = _block_size(model, flags, version)
    attention: dict[tuple[str, int, float], int] = {}
    for layer in layers:
        if layer.kind not in {"none", "state"} and not layer.is_cache_shared:
            kind, window = _effective_kind(layer, flags, version)
            key = (kind, window, token_bytes(layer, model, flags, version))
            attention[key] = attention.get(key, 0) + 1
    states = [state_bytes(layer, model, flags) for layer in layers if layer.state]
    if not states and len({key[:2] for key in attention}) <= 1:
        total = sum(size * number for (_, _, size), number in attention.items())
        kinds = next(iter(attention), ("full", 0, 0.0))
        return Pool(total * block, (Group(kinds[0], kinds[1], block, 1),), is_hybrid=False)
    return _hybrid_pool(attention, states, block, _alignment(model, flags, version), version)


def _hybrid_pool(
    attention: dict[tuple[str, int, float], int],
    states: list[int],
    block: int,
    alignment: int,
    version: EngineVersion,
) -> Pool:
    """All groups share one page size: states are padded up to it, smaller pages get longer blocks."""
    largest = max((size for _, _, size in attention), default=0.0)
    notes: tuple[str, ...] = ()
    if states and largest:
        block = max(block, alignment * math.ceil(max(states) / (alignment * largest)))
        notes = (f"states share the pool: the attention block is {block} tokens",)
    page = block * largest if largest else float(max(states))
    counts = [*attention.values(), *([len(states)] if states else [])]
    size = _group_size(counts, version)
    groups = [
        Group(kind, window, int(block * largest // each), -(-number // size))
        for (kind, window, each), number in attention.items()
    ]
    groups += [Group("state", 0, block, -(-len(states) // size))] if states else []
    return Pool(size * page, tuple(groups), is_hybrid=True, notes=notes)


def _group_size(counts: Sequence[int], version: EngineVersion) -> int:
    """The fewest layers of any kind, or the most where that is hardly more (1.5 times; 1.25 in 0.11 to 0.17)."""
    fewest, most = min(counts), max(counts)
    ratio = 1.0 if version.expected < (0, 11, 0) else 1.25 if version.expected < (0, 18, 0) else 1.5
    return most if most < ratio * fewest else fewest


def _effective_kind(layer: Layer, flags: ServeFlags, version: EngineVersion) -> tuple[str, int]:
    if layer.kind in {"full", "mla", "sparse_mla"}:
        return "full", 0
    allowed = flags.environment_value("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE")
    has_chunks = allowed == "1" if allowed else version.expected >= _CHUNKED_SINCE
    is_off = version.is_v0 or version.expected < _HYBRID_SINCE or (layer.kind == "chunked" and not has_chunks)
    is_off = is_off or bool(flags.value("--disable-hybrid-kv-cache-manager"))
    is_off = is_off or (flags.value("--kv-transfer-config") is not None and version.expected < (0, 14, 0))
    return ("full", 0) if is_off else (layer.kind, layer.window)


def _block_size(model: ModelSpec, flags: ServeFlags, version: EngineVersion) -> int:
    asked = flags.value("--block-size")
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        return asked
    if any(layer.kind == "sparse_mla" for layer in model.layers):
        return 64
    return 64 if model.is_mla and version.expected >= (0, 9, 0) and not model.n_state_layers else BLOCK_TOKENS


def _alignment(model: ModelSpec, flags: ServeFlags, version: EngineVersion) -> int:
    if model.n_state_layers and _state_mode(model, flags, version) == "all":
        chunk = model.traits.get("mamba_chunk_size") or model.traits.get("chunk_size")
        return math.lcm(BLOCK_TOKENS, int(chunk or 256))
    if not model.is_mla:
        return 16
    return 128 if version.expected >= (0, 33, 0) else 64


def demand(model: ModelSpec, flags: ServeFlags, version: EngineVersion) -> Demand:
    """What one request takes besides its own tokens."""
    mode = _state_mode(model, flags, version)
    parallel = max(1, flags.decode_context_parallel_size)
    return Demand(
        in_flight=flags.max_num_batched_tokens * _batches_in_flight(flags, version),
        state_blocks=(1 if mode == "none" else 2) + flags.n_draft_tokens,
        context_parallel=parallel,
        has_all_states=mode == "all",
    )


def _state_mode(model: ModelSpec, flags: ServeFlags, version: EngineVersion) -> str:
    """--mamba-cache-mode as the engine settles it: states are kept at blocks where prefixes are cached."""
    asked, caches = flags.value("--mamba-cache-mode"), flags.value("--enable-prefix-caching")
    if caches is False or version.expected < _ALIGN_SINCE:
        return "none"
    if asked in {"align", "all"}:
        return str(asked)
    if not caches and version.expected < _CACHED_BY_DEFAULT_SINCE:
        return "none"
    return "all" if version.expected < _ALL_STATES_UNTIL and model.model_type in _KEEPS_ALL_STATES else "align"


def _batches_in_flight(flags: ServeFlags, version: EngineVersion) -> int:
    """How many batches may hold blocks below a window at once: config/vllm.py `max_concurrent_batches`."""
    if version.expected < _IN_FLIGHT_SINCE:
        return 1
    stages, is_overlapped = flags.pipeline_parallel_size, flags.has_async_scheduling
    if stages > 1 and version.expected < _V2_RUNNER_SINCE:
        return stages  # the old model runner doesn't overlap the batches of a pipeline
    return stages + is_overlapped


def blocks_per_request(pool: Pool, need: Demand, n_tokens: int) -> int:
    """Blocks of the pool that a request of `n_tokens` holds at most."""
    return sum(group.n_groups * _blocks(group, need, n_tokens) for group in pool.groups)


def _blocks(group: Group, need: Demand, n_tokens: int) -> int:
    block = group.block_tokens
    if group.kind == "state":
        return -(-n_tokens // block) + need.state_blocks - 2 if need.has_all_states else need.state_blocks
    if group.kind == "sliding":
        return -(-min(group.window - 1 + need.in_flight, n_tokens) // block) + 1
    if group.kind == "chunked":
        return -(-min(group.window + need.in_flight, n_tokens) // block)
    return -(-n_tokens // (block * need.context_parallel))


def request_bytes(pool: Pool, need: Demand, n_tokens: int) -> float:
    """What one request of `n_tokens` needs of the pool, in whole blocks."""
    return blocks_per_request(pool, need, n_tokens) * pool.bytes_per_block


def largest_request(pool: Pool, need: Demand, available_bytes: float) -> int:
    """The longest request, in tokens, whose blocks fit into `available_bytes`."""
    if not pool.bytes_per_block or request_bytes(pool, need, 1) > available_bytes:
        return 0
    fits, too_long = 1, 2**31
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if request_bytes(pool, need, middle) <= available_bytes:
            fits = middle
        else:
            too_long = middle
    return fits


def engine_tokens(
    pool: Pool, need: Demand, n_blocks: int, max_model_len: int, version: EngineVersion
) -> tuple[int, float]:
    """What the engine prints: the "GPU KV cache size" in tokens, and the maximum concurrency.

    Up to 0.20.0 the tokens are those of one group: on hybrid models several times less than the pool holds.
    """
    per_request = blocks_per_request(pool, need, max_model_len)
    concurrency = n_blocks / per_request if per_request else 0.0
    if version.expected >= _TOKENS_BY_CONCURRENCY_SINCE:
        return int(concurrency * max_model_len), concurrency
    return n_blocks // max(1, pool.n_groups) * pool.block_tokens * need.context_parallel, concurrency


def bytes_per_token(model: ModelSpec, flags: ServeFlags, version: EngineVersion, **_: Any) -> float:
    """All layers of a rank for one more token of a long request: what windows and states keep doesn't grow."""
    growing = (each for each in model.layers if each.kind not in {"none", "state"} and not each.is_cache_shared)
    full = [layer for layer in growing if _effective_kind(layer, flags, version)[0] == "full"]
    return sum(token_bytes(layer, model, flags, version) for layer in full) / flags.pipeline_parallel_size
