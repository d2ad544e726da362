"""A memory plan as a value: terms with their bands, the verdict, and what the KV cache holds."""

from collections.abc import Mapping

from opslib.domain.states import State, Value
from opslib.domain.vllm_flags import FlagValue


class MemoryTerm(Value):
    """One part of a GPU's memory as a band in bytes, and where the figures come from."""

    name: str
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    source: str


class MemoryPlan(Value):
    """Whether an engine fits its GPUs: ok fits, warning is tight (the band straddles), critical doesn't fit."""

    state: State
    summary: str
    cause: str | None = None  # catalogue id of what would stop the launch, or might
    engine_version: str = ""
    n_gpus: int = 0
    binding_rank: int = 0  # the tensor-parallel ranks of its stage are alike: the first of them
    gpu_total_bytes: int = 0
    terms: tuple[MemoryTerm, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    safe_max_num_seqs: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    estimated_max_model_len: int | None = None
    weights_by_stage_bytes: tuple[int, ...] = ()
    flags: Mapping[str, FlagValue] = {}
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`fits`, `tight`, or the catalogue id of what would stop the launch."""
        return {State.OK: "fits", State.WARNING: "tight"}.get(self.state, self.cause or "unknown")

    def term(self, name: str) -> MemoryTerm:
        """The term of that name."""
        return next(term for term in self.terms if term.name == name)
