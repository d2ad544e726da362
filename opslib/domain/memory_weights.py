"""What loading takes on each rank: bytes on disk (or counted from the config), divided as vLLM divides them.

Sources: vllm/distributed/utils.py `get_pp_indices`; fused_moe/layer.py; quantization/mxfp4.py (padding).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from opslib.domain.engine_defaults import EngineVersion
from opslib.domain.model_spec import ModelSpec
from opslib.domain.parameter_count import (
    Part,
    draft_parts,
    embedding_bytes,
    latent_copies,
    layer_parts,
    per_layer_embedding_bytes,
)
from opslib.domain.quantization import Quantization
from opslib.domain.states import Value
from opslib.domain.vllm_flags import ServeFlags
from opslib.errors import BadParameter

GIB = 2**30
BUFFERS_BYTES = 0.02 * GIB  # rotary tables and the like, on every rank
_TENSORS = {"attention": (0.5, 0.5), "mlp": (2 / 3, 1 / 3), "experts": (2 / 3, 1 / 3)}  # parts of two tensors
_ENCODER_LEFT_OUT_SINCE = (0, 10, 1)  # encoders that no request may use aren't loaded
_VISION_COPIED = 0.45  # of a vision tower: measured between 0.3 (Qwen2.5-VL) and 0.7 (Gemma 3) at TP 4


class WeightBytes(Value):
    """A checkpoint's tensor bytes: all, and those that every tensor-parallel rank holds whole."""

    total_bytes: int
    replicated_bytes: int = 0


class RankWeights(NamedTuple):
    """What the ranks of one pipeline stage load, in bytes each."""

    stage: int
    first_layer: int
    end_layer: int
    n_bytes: float
    replicated_bytes: float


class LoadedWeights(NamedTuple):
    """The ranks by stage, what the whole checkpoint is taken for, and how sure that is."""

    ranks: tuple[RankWeights, ...]
    source: str
    counted_bytes: float  # what the config implies for the same tensors
    given_bytes: float | None
    unpacked_share: float = 1.0  # the same with attention in the model's own dtype, over that: what isn't known

    @property
    def is_at_odds(self) -> bool:
        """Whether disk and config differ by more than a tenth: one of them is not understood."""
        return self.given_bytes is not None and not 0.9 < self.given_bytes / self.counted_bytes < 1.1


def stage_layers(n_layers: int, n_stages: int, partition: str = "") -> tuple[range, ...]:
    """The layers of each pipeline stage; what doesn't divide goes to the middle stages, the last one gets none of it.

    Raises BadParameter for a VLLM_PP_LAYER_PARTITION that doesn't add up.

    >>> [len(layers) for layers in stage_layers(62, 4)]
    [15, 16, 16, 15]
    """
    sizes = [n_layers // n_stages] * n_stages
    for step in range(n_layers % n_stages):
        sizes[-(step + 2) % n_stages] += 1
    if partition:
        given = [int(word) for word in partition.split(",") if word.strip().isdigit()]
        if len(given) != n_stages or sum(given) != n_layers:
            raise BadParameter(f"VLLM_PP_LAYER_PARTITION={partition} doesn't divide {n_layers} layers by {n_stages}")
        sizes = given
    starts = [sum(sizes[:index]) for index in range(n_stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def load_weights(
    model: ModelSpec, flags: ServeFlags, given: WeightBytes | None, version: EngineVersion, gpu_name: str
) -> LoadedWeights:
    """What every rank loads; `given` None counts the weights from the config."""
    drafts = tuple(draft_parts(model)) if flags.n_draft_tokens and not flags.has_own_draft_model else ()
    counted = _counted_file(model, given, has_drafts=bool(drafts))
    scale = given.total_bytes / counted.file_bytes if given else 1.0
    partition = flags.environment_value("VLLM_PP_LAYER_PARTITION")
    stages = stage_layers(model.n_layers, flags.pipeline_parallel_size, partition)
    is_left_out = version.expected >= _ENCODER_LEFT_OUT_SINCE and not serves_media(model, flags)
    loaded = model.model_copy(update={"vision_parameters": 0}) if is_left_out else model
    sums = []
    for stage, layers in enumerate(stages):
        parts = list(_stage_parts(loaded, layers, is_first=stage == 0, is_last=stage == len(stages) - 1))
        parts += drafts if stage == len(stages) - 1 else ()
        sums.append((stage, layers, [_repacked(model, part, flags, version, gpu_name) for part in parts]))
    known = given.replicated_bytes if given else 0
    copied_sum = sum(part.n_bytes for _, _, parts in sums for part in parts if not part.is_sharded)
    copied_scale = known / copied_sum if known and copied_sum else scale
    extra = latent_copies(model) / len(stages) / flags.tensor_parallel_size
    ranks = []
    for stage, layers, parts in sums:
        copied = sum(part.n_bytes for part in parts if not part.is_sharded) * copied_scale
        sharded = sum(_share(part, flags) for part in parts if part.is_sharded) * scale
        if known and copied_sum:  # the rest of the file is what is left for the sharded parts
            sharded *= (given.total_bytes - known) / max(1.0, given.total_bytes - copied_sum * scale) if given else 1.0
        ranks.append(RankWeights(stage, layers.start, layers.stop, sharded + copied + extra + BUFFERS_BYTES, copied))
    source = "bytes on disk" if given else "counted from config.json"
    return LoadedWeights(
        ranks=tuple(ranks),
        source=source,
        counted_bytes=counted.file_bytes,
        given_bytes=given.total_bytes if given else None,
        unpacked_share=1.0 if given else _unpacked_share(model, counted.file_bytes),
    )


def _unpacked_share(model: ModelSpec, counted_bytes: float) -> float:
    """How much more the weights are if attention turns out not to be packed: not every config says."""
    packing = model.quantization
    if packing.method is None or packing.keeps_attention or packing.is_explicit or packing.scope != "all":
        return 1.0
    kept = model.model_copy(update={"quantization": packing.model_copy(update={"keeps_attention": True})})
    return _counted_file(kept, None, has_drafts=False).file_bytes / counted_bytes


def offloaded_bytes(model: ModelSpec, flags: ServeFlags) -> float:
    """What --cpu-offload-gb takes off a rank: whole tensors, layer by layer, until the limit is passed."""
    limit = float(flags.value("--cpu-offload-gb") or 0) * GIB
    moved = 0.0
    for index in range(model.n_layers if limit else 0):
        for part in layer_parts(model, index):
            for share in _TENSORS.get(part.name, (1.0,)):
                if moved >= limit:
                    return moved
                moved += part.n_bytes * share / flags.tensor_parallel_size
    return moved


class _Counted(NamedTuple):
    file_bytes: float  # what a file with the same tensors would hold, with what isn't loaded


def _counted_file(model: ModelSpec, given: WeightBytes | None, *, has_drafts: bool) -> _Counted:
    """What the config implies for the file: of the readings with or without drafts and a tied copy, the nearest one."""
    if model.is_packed_on_load and given is not None:
        plain = model.model_copy(update={"quantization": Quantization(), "is_packed_on_load": False})
        packed = model.model_copy(update={"is_packed_on_load": False})
        both = [_counted_file(each, given, has_drafts=has_drafts) for each in (plain, packed)]
        return min(both, key=lambda counted: abs(given.total_bytes - counted.file_bytes))
    main = sum(part.n_bytes for index in range(model.n_layers) for part in layer_parts(model, index))
    embedding = embedding_bytes(model)
    base = main + embedding * (1 if model.is_tied else 2) + per_layer_embedding_bytes(model)
    base += model.vision_parameters * model.dtype_bytes
    drafted = sum(part.n_bytes for part in draft_parts(model))
    if given is None:
        return _Counted(base + (drafted if has_drafts else 0))
    readings = (base, base + drafted)
    near, off = _nearest(readings, given.total_bytes)
    copied, copied_off = _nearest([reading + embedding for reading in readings], given.total_bytes)
    # few files hold the copy of a tied embedding: only what fits clearly better is one
    return _Counted(copied if model.is_tied and 2 * copied_off < off else near)


def _nearest(readings: Sequence[float], n_bytes: float) -> tuple[float, float]:
    """The reading that is nearest to a size, and how far off it is."""
    return min(((reading, abs(n_bytes - reading)) for reading in readings), key=lambda pair: pair[1])


def serves_media(model: ModelSpec, flags: ServeFlags) -> bool:
    """Whether the engine loads and profiles the encoders: not where every limit is 0 (config/model.py)."""
    limits = flags.value("--limit-mm-per-prompt")
    is_off = isinstance(limits, Mapping) and bool(limits) and not any(limits.values())
    return model.is_multimodal and not is_off and not flags.value("--language-model-only")


def _stage_parts(model: ModelSpec, layers: range, *, is_first: bool, is_last: bool) -> Iterator[Part]:
    for index in layers:
        yield from layer_parts(model, index)
    embedding = embedding_bytes(model)
    if is_first or (is_last and model.is_tied):
        yield Part("embedding", embedding)
    if is_first:
        yield Part("per_layer_embedding", per_layer_embedding_bytes(model))
    if is_last and not model.is_tied:
        yield Part("lm_head", embedding)
    if is_first and model.vision_parameters:
        whole = model.vision_parameters * model.dtype_bytes
        yield Part("vision", whole * _VISION_COPIED, is_sharded=False)
        yield Part("vision", whole * (1 - _VISION_COPIED))


def _share(part: Part, flags: ServeFlags) -> float:
    """One rank's share: KV heads are copied where there are fewer than ranks, experts shared out whole."""
    size = flags.tensor_parallel_size
    if part.name == "experts":
        spread = size * flags.data_parallel_size
        if flags.has_expert_parallel and part.n_units:
            return part.n_bytes * -(-part.n_units // spread) / part.n_units
        return part.n_bytes / spread
    if part.n_units:
        return part.n_bytes / min(size, part.n_units)
    return part.n_bytes / size


def _repacked(model: ModelSpec, part: Part, flags: ServeFlags, version: EngineVersion, gpu_name: str) -> Part:
    """MXFP4 experts are padded for their kernels: both sizes for Marlin, one for Triton on Hopper."""
    moe = model.moe
    if part.name != "experts" or model.quantization.scope != "experts" or moe is None:
        return part
    spread = 1 if flags.has_expert_parallel else flags.tensor_parallel_size
    inner, hidden = moe.intermediate_size // spread, model.hidden_size
    if is_marlin_mxfp4(version, gpu_name):
        padded = _up(inner, 128) * _up(hidden, 256)
    else:
        padded = max(_up(inner, 256 if spread == 1 else 128) * hidden, inner * _up(hidden, 256))
        padded = padded if spread == 1 else _up(inner, 128) * _up(hidden, 256)
    return part._replace(n_bytes=part.n_bytes * padded / (inner * hidden))


def is_marlin_mxfp4(version: EngineVersion, gpu_name: str) -> bool:
    """Whether MXFP4 experts run on Marlin: before 0.11, and on GPUs that are neither Hopper nor SM100."""
    is_newer = is_hopper(gpu_name) or any(word in gpu_name.upper() for word in ("B200", "B300"))
    return version.expected < (0, 11, 0) or not (is_newer or not gpu_name)


def is_hopper(gpu_name: str) -> bool:
    """Whether a GPU's name is one of the Hopper generation.

    >>> is_hopper("NVIDIA H100 80GB HBM3"), is_hopper("RTX PRO 6000")
    (True, False)
    """
    return any(word in gpu_name.upper() for word in ("H100", "H200", "H20", "H800"))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
