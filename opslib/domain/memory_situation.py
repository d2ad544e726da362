"""Everything that a memory plan is estimated from: model, flags, GPU, version, and what a launch showed."""

from collections.abc import Sequence

from opslib.domain.engine_defaults import GIB, EngineVersion, read_engine_version
from opslib.domain.kv_cache import Demand, Pool, demand, make_pool
from opslib.domain.memory_weights import LoadedWeights, RankWeights, WeightBytes, load_weights, serves_media
from opslib.domain.model_layers import Layer
from opslib.domain.model_spec import ModelSpec
from opslib.domain.serve_flags import ServeFlags
from opslib.domain.states import Value

INTEGRATED = ("GB10", "GH200", "GB200 SUPERCHIP", "JETSON", "THOR", "ORIN", "SPARK")
CHOSEN = "the longest that the cache holds: chosen by the engine"
_FREE_CHECKED_SINCE = (0, 9, 1)  # gpu_worker.py `init_device`; not in 0.9.0
_WHOLE_MODEL_SINCE, _WHOLE_MODEL_UNTIL = (0, 14, 0), (0, 17, 0)  # kv_cache_utils.py: not in 0.13.0, still in 0.16.0
_SAMPLER_WARMED_SINCE = (0, 8, 0)  # gpu_worker.py `compile_or_warm_up_model`
_OVERRIDE_CHECKED_SINCE = _NULL_BLOCK_SINCE = (0, 32, 0)  # in 0.32.0; when between 0.24.0 and it isn't known
_STATE_BLOCKS_SINCE = (0, 20, 0)  # config/compilation.py `resolve_cudagraph_mode_and_sizes`; before, sizes were capped
_EAGLE_LAYER = 1  # a draft model without a config of its own is taken for one layer like the target's


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


class Calibration(Value):
    """Corrections of this host's terms, learnt from two or more launches that agree; GiB to add, and their spread."""

    weights_gib: float | None = None
    overhead_gib: float | None = None  # activation peak and non-torch together
    graphs_gib: float | None = None
    spread_gib: float = 0.1
    n_launches: int = 0


class Situation(Value):
    """One set of flags on one kind of GPU; the weights are divided once and kept while the sizes stay."""

    model: ModelSpec
    flags: ServeFlags
    weights: WeightBytes | None
    loaded: LoadedWeights
    total_gib: float
    version: EngineVersion
    gpu_name: str = ""
    free_gib: float | None = None
    observed: ObservedFigures = ObservedFigures()
    calibration: Calibration = Calibration()

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        flags: ServeFlags,
        weights: WeightBytes | None,
        *,
        gpu_total_bytes: int,
        engine_version: str,
        observed: ObservedFigures | None = None,
        gpu_name: str = "",
        free_gib: float | None = None,
        calibration: Calibration | None = None,
    ) -> "Situation":
        """The situation of one GPU, from what callers have."""
        version = read_engine_version(engine_version, flags.environment_value("VLLM_USE_V1"))
        flags = settle(model, flags, version, gpu_total_bytes)
        return cls(
            model=model,
            flags=flags,
            weights=weights,
            loaded=load_weights(model, flags, weights, version, gpu_name),
            total_gib=gpu_total_bytes / GIB,
            version=version,
            gpu_name=gpu_name,
            free_gib=free_gib,
            observed=observed or ObservedFigures(),
            calibration=calibration or Calibration(),
        )

    @property
    def budget_gib(self) -> float:
        """What vLLM lets itself use: utilization x total."""
        return self.total_gib * self.flags.gpu_memory_utilization

    @property
    def is_integrated(self) -> bool:
        """Whether GPU and host share one memory."""
        return any(word in self.gpu_name.upper() for word in INTEGRATED)

    @property
    def is_length_free(self) -> bool:
        """Whether the engine chooses the longest max_model_len that fits (-1 or "auto")."""
        return self.flags.value("--max-model-len") in {-1, "auto"}

    @property
    def model_len(self) -> int | None:
        """The effective max_model_len: the flag's, or the model's own."""
        return self.flags.max_model_len or self.model.max_position_embeddings

    @property
    def need(self) -> Demand:
        """What one request takes besides its own tokens."""
        return demand(self.model, self.flags, self.version)

    def pool(self, rank: RankWeights) -> Pool:
        """The KV cache's pool of one pipeline stage."""
        layers: Sequence[Layer] = self.model.layers[rank.first_layer : rank.end_layer]
        if rank.end_layer == self.model.n_layers and self.flags.n_draft_tokens:
            layers = (*layers, *self._draft_layers())
        return make_pool(self.model, layers, self.flags, self.version)

    def checked_pool(self, rank: RankWeights) -> Pool:
        """The pool that the engine asks for room for one request: in 0.14 to 0.16 that of all stages together."""
        if not self.is_whole_model_checked:
            return self.pool(rank)
        drafts = self._draft_layers() if self.flags.n_draft_tokens else ()
        return make_pool(self.model, (*self.model.layers, *drafts), self.flags, self.version)

    @property
    def is_whole_model_checked(self) -> bool:
        """Whether each rank of a pipeline must have room for the KV cache of all layers (vllm #32105)."""
        is_piped = self.flags.pipeline_parallel_size > 1 and not self.version.is_v0
        return is_piped and _WHOLE_MODEL_SINCE <= self.version.expected < _WHOLE_MODEL_UNTIL

    @property
    def is_free_checked(self) -> bool:
        """Whether the engine looks at free memory before it starts; V0 and 0.8 didn't."""
        return self.free_gib is not None or (not self.version.is_v0 and self.version.expected >= _FREE_CHECKED_SINCE)

    @property
    def has_second_sampler_run(self) -> bool:
        """Whether the sampler runs again once the cache is there; V0 and the first V1 profiled it only."""
        return not self.version.is_v0 and self.version.expected >= _SAMPLER_WARMED_SINCE

    @property
    def fixed_blocks(self) -> int | None:
        """--num-gpu-blocks-override, None where the cache's memory decides."""
        override = self.flags.value("--num-gpu-blocks-override")
        return override if isinstance(override, int) and override > 0 else None

    @property
    def is_override_checked(self) -> bool:
        """Whether a request must fit into the blocks of the override, not into the memory that there would be."""
        return self.fixed_blocks is not None and self.version.expected >= _OVERRIDE_CHECKED_SINCE

    @property
    def n_null_blocks(self) -> int:
        """Blocks that no request gets, taken off before the check (kv_cache_utils.py `get_kv_cache_configs`)."""
        return int(self.version.expected >= _NULL_BLOCK_SINCE and not self.is_whole_model_checked)

    @property
    def needs_state_blocks(self) -> bool:
        """Whether the engine refuses more sequences than its cache has blocks for states (vllm #38270)."""
        is_new = self.version.expected >= _STATE_BLOCKS_SINCE
        return is_new and bool(self.model.n_state_layers) and self.flags.captures_decoding

    def _draft_layers(self) -> tuple[Layer, ...]:
        if not self.flags.has_own_draft_model:
            return self.model.draft_layers
        full = [layer for layer in self.model.layers if layer.kind == "full"]
        return tuple(full[-_EAGLE_LAYER:])

    def with_flag(self, name: str, value: object) -> "Situation":
        """The same with one flag set otherwise; what was observed stays tied to the launch it comes from."""
        observed = self.observed.model_copy(
            update={
                "max_num_seqs": self.observed_max_num_seqs,
                "gpu_memory_utilization": self.observed.gpu_memory_utilization or self.flags.gpu_memory_utilization,
            }
        )
        flags = self.flags.with_value(name, value, "what-if")  # type: ignore[arg-type]
        update: dict[str, object] = {"flags": flags, "observed": observed}
        if name in {"--tensor-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel"}:
            update["loaded"] = load_weights(self.model, flags, self.weights, self.version, self.gpu_name)
            update["observed"] = ObservedFigures()
        return self.model_copy(update=update)

    def observing(self, figures: ObservedFigures) -> "Situation":
        """The same, with what a launch of it showed."""
        return self.model_copy(update={"observed": figures})

    def with_max_num_seqs(self, value: int) -> "Situation":
        """The same with another --max-num-seqs."""
        return self.with_flag("--max-num-seqs", value)

    @property
    def observed_max_num_seqs(self) -> int:
        """The --max-num-seqs of the launch that was observed."""
        return self.observed.max_num_seqs or self.flags.max_num_seqs


def settle(model: ModelSpec, flags: ServeFlags, version: EngineVersion, gpu_total_bytes: int) -> ServeFlags:
    """The defaults that depend on the model: batched tokens without chunked prefill, in V0, and their cap."""
    del gpu_total_bytes
    given = flags.flags.get("--max-num-batched-tokens")
    if given is not None and not given.origin.startswith("default"):
        return flags
    length = flags.max_model_len or model.max_position_embeddings
    chunked = flags.value("--enable-chunked-prefill")
    tokens, why = flags.max_num_batched_tokens, given.origin if given else "default"
    if version.is_v0 and chunked is None:
        chunked = bool(length and length > 32768)
    if chunked is False and length:
        tokens, why = max(length, 2048 if version.is_v0 else tokens), "max_model_len: chunked prefill is off"
    elif version.is_v0:
        tokens, why = 2048 if version.expected >= (0, 6, 4) else 512, "default of V0 with chunked prefill"
    if flags.value("--performance-mode") == "throughput" and not version.is_v0:
        sequences = flags.flags.get("--max-num-seqs")
        if sequences is not None and sequences.origin.startswith("default"):
            flags = flags.with_value("--max-num-seqs", 2 * flags.max_num_seqs, "performance_mode=throughput")
        tokens, why = 2 * tokens, "performance_mode=throughput"
    least = _least_batched_tokens(model, flags)
    if tokens < least:
        tokens, why = least, "raised: one image or video has to fit into a batch"
    if length and tokens > flags.max_num_seqs * length:
        tokens, why = flags.max_num_seqs * length, "max_num_seqs x max_model_len"
    return flags.with_value("--max-num-batched-tokens", tokens, why) if why != (given and given.origin) else flags


def _least_batched_tokens(model: ModelSpec, flags: ServeFlags) -> int:
    """What a batch has to hold of a prefix-LM: engine/arg_utils.py `_get_min_mm_batched_tokens`, Gemma 4 alone.

    Its small models (with an embedding per layer) attend to media causally, and then nothing has to fit.
    """
    asked = model.traits.get("use_bidirectional_attention")
    is_causal = asked != "vision" if asked else bool(model.traits.get("hidden_size_per_layer_input"))
    return 0 if is_causal or not serves_media(model, flags) else int(model.traits.get("least_batched_tokens") or 0)
