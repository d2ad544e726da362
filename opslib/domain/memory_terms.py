"""The terms of a GPU's memory, each as a band: estimated from tables, or taken from what a launch showed.

Rules by version: vllm/v1/worker/gpu_worker.py `determine_available_memory`, gpu_model_runner.py `profile_run`.
"""

from typing import Any

from opslib.domain.bands import Band, exactly, larger, spanning
from opslib.domain.engine_defaults import GIB, Triple
from opslib.domain.memory_forward import band_of, forward_estimate, table
from opslib.domain.memory_situation import ObservedFigures, Situation
from opslib.domain.memory_weights import RankWeights, WeightBytes, offloaded_bytes

__all__ = ["Band", "ObservedFigures", "Situation", "WeightBytes", "table"]
_ROUNDING = 0.011  # journals print two digits of a GiB
_GRAPHS_BUDGETED_SINCE = (0, 20, 0)
_CONSUMED_SINCE = (0, 27, 0)  # mem_utils.py `total_consumed`: what free memory lost, kernels and pinned pieces too
# Ampere, Ada and Turing
_AMPERE = ("A100", "A800", "A40", "A10", "A30", "A5000", "A6000", "3090", "4090", "RTX 30", "RTX 40", "L4", "ADA", "T4")
_ALL_SIZES = 51  # capture sizes up to 512


def _era(version: Triple) -> dict[str, Any]:
    row: dict[str, Any]
    for row in table()["sampler"]:
        minor = 999 if row["until"] == "999" else int(row["until"].partition(".")[2])
        if version[:2] <= (0, minor):
            return row
    return dict(table()["sampler"][-1])


def sampler_row(situation: Situation) -> dict[str, Any]:
    """The sampler of the version's era, or the one that the environment chooses."""
    asked = situation.flags.environment_value("VLLM_USE_FLASHINFER_SAMPLER")
    if asked == "1":
        return dict(table()["sampler_flashinfer"])
    row = _era(situation.version.expected)
    if asked == "0" and situation.version.expected < (0, 11, 0):
        return {**row, "u": _era((0, 11, 0))["u"]}
    return row


def sampler_peak(situation: Situation, max_num_seqs: int | None = None) -> Band:
    """What the sampler's dummy run takes: full-vocabulary rows, the same on every tensor-parallel rank."""
    flags, model = situation.flags, situation.model
    rows = min(max_num_seqs or flags.max_num_seqs, flags.max_num_batched_tokens)
    unit = rows * model.vocab_size * 4 / GIB
    band = band_of(sampler_row(situation)["u"])
    if situation.version.is_loose:
        version = situation.version
        band = spanning([band_of(_era(end)["u"]) for end in (version.low, version.high)], band)
    if low := model.traits.get("sampler_low"):
        band = Band(min(float(low), band.low), band.expected, band.high)
    return band.times(unit)


def forward_peak(situation: Situation) -> Band:
    """What the dummy forward pass (and the encoder's) takes; bounded by what a launch's profile left of its budget.

    The profile reserved max(forward, sampler): that bounds the forward peak, or is the peak itself.
    """
    band, reserved = forward_estimate(situation), _reserved(situation)
    if reserved is None:
        return band
    charged = non_torch(situation)
    if reserved > sampler_peak(situation, situation.observed_max_num_seqs).high + charged.high:
        return Band(max(0.0, reserved - charged.high), reserved - charged.expected, reserved - charged.low + _ROUNDING)
    return Band(min(band.low, reserved), min(band.expected, reserved), min(band.high, reserved + _ROUNDING))


def _reserved(situation: Situation) -> float | None:
    """What a launch's profile set aside besides the weights (and the graphs' estimate), in GiB."""
    seen = situation.observed
    if seen.weights_gib is None or seen.available_kv_gib is None or is_graph_budgeted(situation):
        return None
    budget = situation.total_gib * (seen.gpu_memory_utilization or situation.flags.gpu_memory_utilization)
    return budget - seen.weights_gib - seen.available_kv_gib


def _per_group(row: dict[str, Any], tensor_parallel_size: int, one: str = "one_gpu", group: str = "") -> Band:
    band = band_of(row[one])
    if tensor_parallel_size == 1:
        return band
    name = group or ("pair" if tensor_parallel_size == 2 else "group")
    return band + band_of(row[name])


def context(situation: Situation) -> Band:
    """CUDA context and NCCL: taken before the budget is measured."""
    ranks = situation.flags.tensor_parallel_size * situation.flags.pipeline_parallel_size
    one = "one_gpu_ampere" if _is_ampere(situation) else "one_gpu"
    return _per_group(table()["context"], ranks, one, _pair(situation, ranks))


def _pair(situation: Situation, n_ranks: int) -> str:
    """Ranks of the Ampere and Ada generations hold less for each other than later ones."""
    if not _is_ampere(situation):
        return ""
    return "pair_ampere" if n_ranks == 2 else "group_ampere"


def _is_ampere(situation: Situation) -> bool:
    return any(word in situation.gpu_name.upper() for word in _AMPERE)


def non_torch(situation: Situation) -> Band:
    """What grows outside PyTorch during the profile; charged to the budget, and used."""
    row, size, version = table()["non_torch"], situation.flags.tensor_parallel_size, situation.version
    if version.is_v0 and version.expected < (0, 7, 0):
        one_gpu = "old_one_gpu_ampere" if _is_ampere(situation) else "old_one_gpu"
        band = _per_group(row, size, one_gpu, "old_group")
    else:
        one_gpu = "consumed_one_gpu" if version.expected >= _CONSUMED_SINCE else "one_gpu"
        band = _per_group(row, size, "v0_one_gpu" if version.is_v0 else one_gpu, _pair(situation, size))
    if situation.is_integrated:
        band = band + band_of(row["unified"])
    reserved = _reserved(situation)
    if reserved is None:
        return band
    peak = larger(forward_estimate(situation), sampler_peak(situation, situation.observed_max_num_seqs))
    rest = (reserved - peak.high, reserved - peak.expected, reserved - peak.low)
    low, expected, high = (min(max(0.0, bound), band.high) for bound in rest)
    return Band(low, expected, high)


def capture_sizes(situation: Situation) -> int:
    """How many batch sizes are captured (vllm/config/vllm.py): 1, 2, 4, every 8th below 256, every 16th above."""
    flags = situation.flags
    given = flags.value("--cudagraph-capture-sizes") or flags.compilation.get("cudagraph_capture_sizes")
    if isinstance(given, list) and given:
        return len(given)
    most = min(2 * flags.max_num_seqs * (1 + flags.n_draft_tokens), 512, flags.max_num_batched_tokens)
    limit = flags.value("--max-cudagraph-capture-size")
    limit = flags.compilation.get("max_cudagraph_capture_size") if limit is None else limit
    if isinstance(limit, int):
        most = min(most, limit) if limit else 0
    return sum(size <= most for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))


def cuda_graphs(situation: Situation) -> Band:
    """What graph capture takes; none when eager."""
    if situation.flags.is_eager:
        return exactly(0.0)
    if situation.observed.graphs_gib is not None:
        return exactly(situation.observed.graphs_gib)
    if situation.calibration.graphs_gib is not None:
        return exactly(situation.calibration.graphs_gib)
    is_dense = situation.model.is_known and situation.model.moe is None and not situation.model.n_state_layers
    return _graphs(situation, "per_layer_dense" if is_dense else "per_layer", "measured_per_layer")


def _graphs(situation: Situation, row: str, measured: str) -> Band:
    rows, model = table()["cuda_graphs"], situation.model
    own = rows[measured].get(model.model_type)
    small = 0.4 + 0.6 * min(1.0, model.hidden_size / 4096)  # the figures are of models of about that width
    per_layer = band_of(own) if own else band_of(rows[row]).times(small)
    first = rows["eager_share"]
    share = first + (1 - first) * min(1.0, capture_sizes(situation) / _ALL_SIZES)
    return per_layer.times(model.n_layers / situation.flags.pipeline_parallel_size * share)


def is_graph_budgeted(situation: Situation) -> bool:
    """Whether the profile estimates the graphs and takes them off the budget."""
    asked = situation.flags.environment_value("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if asked in {"0", "1"} and situation.version.expected >= (0, 18, 0):
        return asked == "1"
    return situation.version.expected >= _GRAPHS_BUDGETED_SINCE


def graphs_in_budget(situation: Situation) -> Band:
    """What the profile takes off the budget for graphs: its own estimate, from 0.20 on."""
    if situation.flags.is_eager or not is_graph_budgeted(situation):
        return exactly(0.0)
    if (learnt := situation.calibration.graphs_gib) is not None:
        return exactly(learnt)
    row = "estimate_per_layer_consumed" if situation.version.expected >= _CONSUMED_SINCE else "estimate_per_layer"
    return _graphs(situation, row, "measured_estimate_per_layer")


def graphs_outside_budget(situation: Situation) -> Band:
    """What graphs take of the memory that the budget leaves: all up to 0.19, later what the estimate misses."""
    if situation.flags.is_eager or not is_graph_budgeted(situation):
        return cuda_graphs(situation)
    return band_of(table()["cuda_graphs"]["estimate_error"])


def fragmentation(situation: Situation) -> Band:
    """What the allocator holds without using it: more where the sampler sorts the logits, in large pieces."""
    row = "share" if situation.version.expected < (0, 17, 0) else "share_unsorted"
    return band_of(table()["fragmentation"][row]).times(situation.total_gib)


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


def weights(situation: Situation, rank: RankWeights) -> Band:
    """What loading takes on one rank."""
    seen = situation.observed.weights_gib
    if seen is not None:
        return exactly(seen)
    loaded = rank.n_bytes / GIB
    offloaded = offloaded_bytes(situation.model, situation.flags) / GIB
    band = band_of(table()["weights"][_weights_kind(situation)]).times(loaded)
    if situation.loaded.given_bytes is None:
        packing = situation.model.quantization
        kind = "grouped" if packing.is_grouped else "counted_quantized" if packing.method else "counted"
        band = band + band_of(table()["weights"][kind]).times(loaded).shifted(-loaded)
        band = band + Band(0.0, 0.0, (situation.loaded.unpacked_share - 1) * loaded)
    if situation.flags.has_own_draft_model:
        band = band + band_of(table()["weights"]["draft_gib"])
    if (learnt := situation.calibration.weights_gib) is not None:
        spread = situation.calibration.spread_gib
        expected = band.expected + learnt
        band = Band(expected - spread, expected, expected + spread)
    return band.shifted(-offloaded).at_least(0.0)


def _weights_kind(situation: Situation) -> str:
    model = situation.model
    if not model.is_known or situation.loaded.is_at_odds:
        return "unknown"
    if model.quantization.scope == "experts":
        return "mxfp4"
    if model.quantization.method:
        return "quantized_moe" if model.moe else "quantized"
    return "dense"
