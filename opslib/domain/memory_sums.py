"""The terms of one rank added up, and which rank of a pipeline binds the plan."""

from typing import NamedTuple

from opslib.domain import memory_terms as terms
from opslib.domain.bands import Band, exactly, larger
from opslib.domain.engine_defaults import GIB
from opslib.domain.kv_cache import Pool, engine_tokens, largest_request, request_bytes
from opslib.domain.memory_situation import Situation
from opslib.domain.memory_weights import RankWeights


class Sums(NamedTuple):
    """All bands of one rank, in GiB, and what its cache holds."""

    weights: Band
    sampler: Band
    forward: Band
    peak: Band
    non_torch: Band
    graphs: Band
    graphs_in_budget: Band
    beside: Band
    kv_cache: Band
    left: Band
    slack: Band
    request_gib: float
    pool: Pool
    n_blocks: int
    tokens: int
    concurrency: float
    longest_request: int


def add_up(situation: Situation, rank: RankWeights | None = None) -> Sums:
    """All terms of one rank for one set of flags; without a rank, of the one that binds.

    The reserved and the repeated sampler run are one quantity, so their difference is taken before bands are combined.
    """
    if rank is None:
        return binding_rank(situation)[1]
    flags, total = situation.flags, situation.total_gib
    is_last = rank.stage == flags.pipeline_parallel_size - 1
    weights = terms.weights(situation, rank)
    sampler = terms.sampler_peak(situation) if is_last else exactly(0.0)
    forward, extra = terms.forward_peak(situation), terms.non_torch(situation)
    graphs, budgeted = terms.cuda_graphs(situation), terms.graphs_in_budget(situation)
    outside, beside = terms.graphs_outside_budget(situation), terms.beside_the_budget(situation)
    peak = larger(forward, sampler)
    if (learnt := situation.calibration.overhead_gib) is not None:
        spread = situation.calibration.spread_gib
        expected = max(0.0, peak.expected + learnt)
        peak = Band(max(0.0, expected - spread), expected, expected + spread)
    explicit = flags.kv_cache_memory_bytes
    if explicit is not None:
        cache = exactly(explicit / GIB)
        slack = exactly(total).minus(weights + extra + graphs + beside + cache + sampler)
    else:
        cache = exactly(situation.budget_gib).minus(weights + peak + extra + budgeted)
        spare = forward.expected - sampler.expected
        rooms = Band(*(max(0.0, bound) for bound in (forward.low - sampler.high, spare, forward.high - sampler.low)))
        slack = (exactly(total - situation.budget_gib) + rooms).minus(outside + beside)
    left = Band(slack.low + sampler.low, slack.expected + sampler.expected, slack.high + sampler.high)
    pool, need, length = situation.pool(rank), situation.need, situation.model_len or 1
    checked = situation.checked_pool(rank)
    available = max(0.0, cache.expected) * GIB
    n_blocks = int(available // pool.bytes_per_block) if pool.bytes_per_block else 0
    if (override := situation.fixed_blocks) is not None:
        n_blocks = override
        available = override * pool.bytes_per_block if situation.is_override_checked else available
    held_back = situation.n_null_blocks * checked.bytes_per_block
    tokens, concurrency = engine_tokens(pool, need, n_blocks, length, situation.version)
    return Sums(
        weights=weights,
        sampler=sampler,
        forward=forward,
        peak=peak,
        non_torch=extra,
        graphs=graphs,
        graphs_in_budget=budgeted,
        beside=beside,
        kv_cache=cache,
        left=left,
        slack=slack,
        request_gib=(request_bytes(checked, need, length) + held_back) / GIB,
        pool=pool,
        n_blocks=n_blocks,
        tokens=tokens,
        concurrency=concurrency,
        longest_request=largest_request(checked, need, max(0.0, available - held_back)),
    )


def binding_rank(situation: Situation) -> tuple[RankWeights, Sums]:
    """The pipeline stage whose ranks hold the fewest blocks (every rank gets the same number), and its sums."""
    stages = [(rank, add_up(situation, rank)) for rank in situation.loaded.ranks]

    def tightness(stage: tuple[RankWeights, Sums]) -> tuple[float, float, float]:
        sums = stage[1]
        short = min(0.0, sums.kv_cache.expected - sums.request_gib)
        return short, sums.n_blocks if sums.pool.bytes_per_block else float("inf"), sums.slack.expected

    return min(stages, key=tightness)
