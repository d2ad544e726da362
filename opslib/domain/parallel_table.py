"""What each way of spreading a model over GPUs gives: weights, KV cache, concurrency, and what ranks exchange."""

from collections.abc import Iterator

from opslib.domain.kv_cache import bytes_per_token
from opslib.domain.kv_pages import model_dtype_bytes
from opslib.domain.memory import plan_situation
from opslib.domain.memory_checks import impossible
from opslib.domain.memory_situation import Situation
from opslib.domain.states import Value

SIZES = (1, 2, 4, 8)


class ParallelRow(Value):
    """One tensor- and pipeline-parallel size: per GPU in bytes, tokens of the whole engine, and what binds."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    verdict: str
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    kv_cache_tokens: int = 0
    max_concurrency: float = 0.0
    kv_bytes_per_token: int = 0  # of one rank
    all_reduce_bytes_per_token: int = 0  # sent by each rank for each token of prompt or answer

    @property
    def n_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


def all_reduce_bytes_per_token(situation: Situation) -> int:
    """What one rank sends for one token: two all-reduces of the hidden state per layer, each 2 (n-1)/n of it in a ring.

    Grouped heads and latents exchange the same; what a latent saves is cache, what it costs is a copy on every rank.
    """
    model, size = situation.model, situation.flags.tensor_parallel_size
    layers = -(-model.n_layers // situation.flags.pipeline_parallel_size)
    each = model.hidden_size * model_dtype_bytes(model, situation.flags)
    return int(2 * layers * each * 2 * (size - 1) / size)


def parallel_table(situation: Situation, n_gpus: int) -> tuple[ParallelRow, ...]:
    """Every tensor x pipeline size that `n_gpus` allow, fewest GPUs first."""
    return tuple(sorted(_rows(situation, n_gpus), key=lambda row: (row.n_gpus, row.pipeline_parallel_size)))


def _rows(situation: Situation, n_gpus: int) -> Iterator[ParallelRow]:
    for size in SIZES:
        for stages in SIZES:
            if size * stages > n_gpus:
                continue
            flags = situation.flags.with_value("--tensor-parallel-size", size, "table")
            flags = flags.with_value("--pipeline-parallel-size", stages, "table")
            shape = {"tensor_parallel_size": size, "pipeline_parallel_size": stages}
            if refusal := impossible(situation.model, flags):
                yield ParallelRow(**shape, verdict=refusal[0])
                continue
            spread = situation.with_flag("--tensor-parallel-size", size).with_flag("--pipeline-parallel-size", stages)
            plan = plan_situation(spread)
            yield ParallelRow(
                **shape,
                verdict=plan.verdict,
                weights_bytes=plan.term("weights").expected_bytes,
                kv_cache_bytes=max(0, plan.term("kv_cache").expected_bytes),
                kv_cache_tokens=plan.kv_cache_tokens or 0,
                max_concurrency=plan.max_concurrency or 0.0,
                kv_bytes_per_token=int(bytes_per_token(spread.model, spread.flags, spread.version)),
                all_reduce_bytes_per_token=all_reduce_bytes_per_token(spread),
            )
