"""The terms of a GPU's memory, each as a band: estimated from tables, or taken from what a launch showed.

Rules by version: vllm/v1/worker/gpu_worker.py `determine_available_memory`, gpu_model_runner.py `profile_run`.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from opslib.domain.engine_defaults import GIB, parse_engine_version
from opslib.domain.model_spec import ModelSpec
from opslib.domain.states import Value
from opslib.domain.vllm_flags import ServeFlags

_ROUNDING = 0.011  # journals print two digits of a GiB


class Band(NamedTuple):
    """A quantity with its uncertainty, in GiB."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Band") -> "Band":  # type: ignore[override]
        return Band(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def minus(self, other: "Band") -> "Band":
        """The difference of two independent quantities."""
        return Band(self.low - other.high, self.expected - other.expected, self.high - other.low)

    def times(self, factor: float) -> "Band":
        """Each bound times a positive factor."""
        return Band(self.low * factor, self.expected * factor, self.high * factor)


def exactly(value: float) -> Band:
    """A quantity that is known."""
    return Band(value, value, value)


def larger(one: Band, other: Band) -> Band:
    """The larger of two quantities."""
    return Band(max(one.low, other.low), max(one.expected, other.expected), max(one.high, other.high))


class WeightBytes(Value):
    """A checkpoint's tensor bytes: all, and those that every tensor-parallel rank holds whole."""

    total_bytes: int
    replicated_bytes: int = 0


class ObservedFigures(Value):
    """What the journal of a launch said about one GPU; None where it didn't. `max_num_seqs` is that launch's."""

    weights_gib: float | None = None
    available_kv_gib: float | None = None
    graphs_gib: float | None = None
    free_at_failure_gib: float | None = None
    total_gib: float | None = None
    tried_to_allocate_gib: float | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None


class Situation(Value):
    """Everything that the terms are estimated from."""

    model: ModelSpec
    flags: ServeFlags
    weights: WeightBytes
    total_gib: float
    version: tuple[int, int, int]
    observed: ObservedFigures = ObservedFigures()

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        flags: ServeFlags,
        weights: WeightBytes,
        *,
        gpu_total_bytes: int,
        engine_version: str,
        observed: ObservedFigures | None,
    ) -> "Situation":
        """The situation of one GPU, from what callers have."""
        return cls(
            model=model,
            flags=flags,
            weights=weights,
            total_gib=gpu_total_bytes / GIB,
            version=parse_engine_version(engine_version),
            observed=observed or ObservedFigures(),
        )

    @property
    def budget_gib(self) -> float:
        """What vLLM lets itself use: utilization x total."""
        return self.total_gib * self.flags.gpu_memory_utilization

    def with_max_num_seqs(self, value: int) -> "Situation":
        """The same with other flags; what was observed stays tied to the launch it comes from."""
        observed = self.observed.model_copy(update={"max_num_seqs": self.observed_max_num_seqs})
        flags = self.flags.with_value("--max-num-seqs", value, "what-if")
        return self.model_copy(update={"flags": flags, "observed": observed})

    @property
    def observed_max_num_seqs(self) -> int:
        """The --max-num-seqs of the launch that was observed."""
        return self.observed.max_num_seqs or self.flags.max_num_seqs


@cache
def table() -> dict[str, Any]:
    """The measured figures of data/memory.toml."""
    return tomllib.loads(files("opslib.domain.data").joinpath("memory.toml").read_text("utf-8"))


def _band(row: Sequence[float]) -> Band:
    low, expected, high = row
    return Band(low, expected, high)


def sampler_row(version: tuple[int, int, int]) -> dict[str, Any]:
    """The sampler of a version's era."""
    return next(row for row in table()["sampler"] if version[:2] <= parse_engine_version(f"{row['until']}.0")[:2])


def sampler_peak(situation: Situation, max_num_seqs: int | None = None) -> Band:
    """What the sampler's dummy run takes: full-vocabulary rows, the same on every tensor-parallel rank."""
    flags = situation.flags
    rows = min(max_num_seqs or flags.max_num_seqs, flags.max_num_batched_tokens)
    unit = rows * situation.model.vocab_size * 4 / GIB
    return _band(sampler_row(situation.version)["u"]).times(unit)


def forward_peak(situation: Situation) -> Band:
    """What the dummy forward pass takes; bounded by what a launch's profile left of its budget.

    The profile reserved max(forward, sampler): that bounds the forward peak, or is the peak itself.
    """
    band, reserved = _forward_estimate(situation), _reserved(situation)
    if reserved is None:
        return band
    charged = non_torch(situation)
    if reserved > sampler_peak(situation, situation.observed_max_num_seqs).high + charged.high:
        return Band(max(0.0, reserved - charged.high), reserved - charged.expected, reserved - charged.low + _ROUNDING)
    return Band(min(band.low, reserved), min(band.expected, reserved), min(band.high, reserved + _ROUNDING))


def _forward_estimate(situation: Situation) -> Band:
    model, flags, rows = situation.model, situation.flags, table()["forward"]
    measured = rows["measured_mib_per_token"].get(model.model_type)
    if measured:
        band = _band(measured).times(flags.max_num_batched_tokens / 1024)
    else:
        kind = "unknown" if not model.is_known else "moe" if model.n_experts else "dense"
        layer = _layer_bytes_per_token(model, flags.tensor_parallel_size)
        band = _band(rows[kind]).times(layer * flags.max_num_batched_tokens / GIB)
    return band + _band(rows["multimodal_gib"]) if model.is_multimodal else band


def _layer_bytes_per_token(model: ModelSpec, tensor_parallel_size: int) -> float:
    """Gate and up, their product and three copies of the hidden state; for experts vLLM's fused_moe caches."""
    hidden = 3 * model.hidden_size
    if not model.n_experts:
        return model.dtype_bytes * (3 * model.intermediate_size / tensor_parallel_size + hidden)
    inner = model.moe_intermediate_size / tensor_parallel_size
    return model.dtype_bytes * (model.experts_per_token * (max(2 * inner, model.hidden_size) + inner) + hidden)


def _reserved(situation: Situation) -> float | None:
    """What a launch's profile set aside besides the weights (and the graphs' estimate), in GiB."""
    seen = situation.observed
    if seen.weights_gib is None or seen.available_kv_gib is None or situation.version >= (0, 20, 0):
        return None
    budget = situation.total_gib * (seen.gpu_memory_utilization or situation.flags.gpu_memory_utilization)
    return budget - seen.weights_gib - seen.available_kv_gib


def _per_group(row: dict[str, Any], tensor_parallel_size: int) -> Band:
    one = _band(row["one_gpu"])
    return one + _band(row["per_group"]) if tensor_parallel_size > 1 else one


def context(situation: Situation) -> Band:
    """CUDA context and NCCL: taken before the budget is measured."""
    return _per_group(table()["context"], situation.flags.tensor_parallel_size)


def non_torch(situation: Situation) -> Band:
    """What grows outside PyTorch during the profile; charged to the budget, and used."""
    band, reserved = _per_group(table()["non_torch"], situation.flags.tensor_parallel_size), _reserved(situation)
    if reserved is None:
        return band
    peak = larger(_forward_estimate(situation), sampler_peak(situation, situation.observed_max_num_seqs))
    return Band(*(min(max(0.0, bound), band.high) for bound in exactly(reserved).minus(peak)))


def cuda_graphs(situation: Situation) -> Band:
    """What graph capture takes; none when eager."""
    if situation.flags.is_eager:
        return exactly(0.0)
    if situation.observed.graphs_gib is not None:
        return exactly(situation.observed.graphs_gib)
    return _band(table()["cuda_graphs"]["per_layer"]).times(situation.model.n_layers)


def graphs_outside_budget(situation: Situation) -> Band:
    """What graphs take of the memory that the budget leaves: all up to 0.19, later what the estimate misses."""
    if situation.version < (0, 20, 0) or situation.flags.is_eager:
        return cuda_graphs(situation)
    return _band(table()["cuda_graphs"]["estimate_error"])


def fragmentation(situation: Situation) -> Band:
    """What the allocator holds without using it."""
    return _band(table()["fragmentation"]["share"]).times(situation.total_gib)


def beside_the_budget(situation: Situation) -> Band:
    """Context, NCCL and fragmentation together: what a launch showed, or the sum of the estimates.

    Where a launch failed in the middle of the sampler, what it showed is a range; then both narrow each other.
    """
    estimate, seen = context(situation) + fragmentation(situation), situation.observed
    known = (seen.weights_gib, seen.available_kv_gib, seen.graphs_gib, seen.free_at_failure_gib)
    if any(figure is None for figure in known):
        return estimate
    held = sum(figure for figure in known if figure is not None)
    rest = exactly((seen.total_gib or situation.total_gib) - held)
    sampler = _taken_by_sampler_at_failure(situation)
    shown = rest.minus(sampler + Band(-2 * _ROUNDING, 0.0, 2 * _ROUNDING))
    if sampler.high == 0.0 or not shown.low < estimate.high <= shown.high:
        return shown
    low, high = max(shown.low, estimate.low), min(shown.high, estimate.high)
    return Band(low, min(max(shown.expected, low), high), high)


def _taken_by_sampler_at_failure(situation: Situation) -> Band:
    """What the failing sampler already held: nothing where the refused piece was smaller than what was free."""
    seen = situation.observed
    tried, free = seen.tried_to_allocate_gib, seen.free_at_failure_gib
    if tried is None or free is None or tried <= free:
        return exactly(0.0)
    most = max(0.0, sampler_peak(situation, situation.observed_max_num_seqs).high - tried)
    return Band(0.0, most / 2, most)


def weights(situation: Situation) -> Band:
    """What loading takes on one rank."""
    seen = situation.observed.weights_gib
    if seen is not None:
        return exactly(seen)
    model, flags, parts = situation.model, situation.flags, situation.weights
    split = (parts.total_bytes - parts.replicated_bytes) / flags.tensor_parallel_size + parts.replicated_bytes
    rank = split / flags.pipeline_parallel_size / GIB
    offloaded = float(flags.value("--cpu-offload-gb") or 0)
    band = _band(table()["weights"][_weights_kind(model)]).times(rank)
    return Band(*(max(0.0, bound - offloaded) for bound in band))


def _weights_kind(model: ModelSpec) -> str:
    if not model.is_known:
        return "unknown"
    if model.quantization == "mxfp4":
        return "mxfp4"
    if model.quantization:
        return "quantized_moe" if model.n_experts else "quantized"
    return "dense"
