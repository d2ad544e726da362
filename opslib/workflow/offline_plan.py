"""Plan GPU memory from what a command line gives: a checkpoint or a config, figures of a GPU, flags."""

from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.engine_defaults import GIB
from opslib.domain.flag_sense import senseless
from opslib.domain.host import Host
from opslib.domain.memory import MemoryPlan, WeightBytes, plan_memory
from opslib.domain.memory_checks import impossible
from opslib.domain.memory_remedy import Remedy, remedies_of
from opslib.domain.memory_situation import Calibration, Situation
from opslib.domain.model_spec import ModelSpec, overridden, parse_model_config
from opslib.domain.parallel_table import ParallelRow, parallel_table
from opslib.domain.plan_document import plan_document, plan_lines
from opslib.domain.quantization import read_quantization
from opslib.domain.states import State, Value
from opslib.domain.vllm_flags import ServeFlags, parse_serve_arguments
from opslib.errors import BadParameter
from opslib.workflow.plan import gather_engine_version, weights_of
from opslib.workflow.topology import HostGpus, MemoryHolder, gather_host_gpus, gather_room
from opslib.workflow.verify import checkpoint_path, verify_checkpoint

_ANY_GIB = 80.0  # for defaults where no GPU is named
_ENDLESS_GIB = 1e6


class GpuFigures(Value):
    """What is said of the GPUs; None where it isn't."""

    memory_gib: float | None = None
    n_gpus: int | None = None
    name: str = ""
    free_gib: float | None = None


class PlanInput(Value):
    """A command line, read."""

    flags: tuple[str, ...] = ()
    engine_version: str = ""
    environment: Mapping[str, str] = {}
    gpu: GpuFigures = GpuFigures()
    config: Mapping[str, Any] | None = None
    weights_bytes: int | None = None
    checkpoint: str | None = None


class OfflinePlan(Value):
    """The plan, its remedies, and what it was made from."""

    plan: MemoryPlan
    remedies: tuple[Remedy, ...] = ()
    engine_version: str = ""
    is_gpu_known: bool = True
    extra: Mapping[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """As one JSON document."""
        own = plan_document(
            self.plan, self.remedies, engine_version=self.engine_version, is_gpu_known=self.is_gpu_known
        )
        return {**own, **self.extra}

    def lines(self) -> Iterator[str]:
        """As lines for a terminal."""
        yield from plan_lines(self.plan, self.remedies)
        if gpus := self.extra.get("gpus"):
            yield f"GPUs: {', '.join(map(str, gpus['proposed'])) or 'too few'} ({gpus['wiring']})"
            yield from (MemoryHolder(**holder).sentence for holder in gpus["holders"])
        for row in self.extra.get("parallel_table", ()):
            size = f"tensor x pipeline {row['tensor_parallel_size']} x {row['pipeline_parallel_size']}"
            kv = f"{row['kv_cache_tokens']:,} KV tokens, {row['max_concurrency']:.2f} requests at once"
            wire = f"{row['all_reduce_bytes_per_token'] / 1024:.0f} KiB all-reduce per token"
            yield f"{size}: {row['verdict']}; {row['weights_bytes'] / GIB:.2f} GiB of weights, {kv}, {wire}"
        for row in self.extra.get("ledger", ()):
            for name, actual in row["actual"].items():
                predicted = row["predicted"].get(name)
                told = "not predicted" if predicted is None else f"predicted {predicted:,.2f}"
                yield f"ledger: {row['record']}  {name} {actual:,.2f}, {told}"


def plan_offline(host: Host | None, given: PlanInput, *, calibration: Calibration | None = None) -> OfflinePlan:
    """Plans what a command line asks for; a host is asked for what isn't given (checkpoint, GPUs, version).

    Raises BadParameter naming what makes no sense, UnexpectedAnswer for a config that can't be read.
    """
    report = verify_checkpoint(host, checkpoint_path(host, given.checkpoint)) if host and given.checkpoint else None
    config = given.config if report is None else report.config
    if config is None:
        raise BadParameter(f"{given.checkpoint} has no usable config.json")
    if host is not None and given.weights_bytes is not None:
        _refuse_too_large(host, given.weights_bytes)
    found = gather_host_gpus(host) if host is not None and given.gpu.memory_gib is None else HostGpus()
    version = given.engine_version
    if host and not version and not given.config and found.gpus:
        version = gather_engine_version(host)
    asked = parse_serve_arguments(given.flags, engine_version=version)
    budget = asked.gpu_memory_utilization * max((gpu.memory_usable_bytes for gpu in found.gpus), default=0)
    chosen = found.propose(asked.n_gpus, int(budget))
    figures = _figures(given.gpu, found, chosen)
    flags = _flags(given, figures, version)
    model = _model(config, flags)
    _refuse_nonsense(model, flags, figures)
    planned = _planned(model, flags, _weights(given, report), figures, version=version, calibration=calibration)
    if host is not None and found.gpus:
        table = _table(model, flags, _weights(given, report), figures, version=version, calibration=calibration)
        extra = {**host_facts(found, chosen), "parallel_table": [row.model_dump() for row in table]}
        planned = planned.model_copy(update={"extra": extra})
    if report is None or report.state is not State.CRITICAL:
        return planned
    notes = (f"the checkpoint is not whole: {report.summary}", *planned.plan.notes)
    return planned.model_copy(update={"plan": planned.plan.model_copy(update={"notes": notes})})


def _figures(said: GpuFigures, found: HostGpus, chosen: tuple[int, ...]) -> GpuFigures:
    """What is said of the GPUs, and for the rest the host's: of the chosen ones the smallest, and the least free."""
    if said.memory_gib is not None or not found.gpus:
        return said
    gpus = [gpu for gpu in found.gpus if gpu.index in chosen] or list(found.gpus)
    smallest = min(gpus, key=lambda gpu: gpu.memory_usable_bytes)
    free = min(gpu.memory_free_bytes for gpu in gpus) / GIB
    is_held = any(holder.gpu_index in chosen for holder in found.holders)
    return GpuFigures(
        memory_gib=smallest.memory_usable_bytes / GIB,
        n_gpus=said.n_gpus or len(found.gpus),
        name=said.name or smallest.name,
        free_gib=said.free_gib if said.free_gib is not None or not is_held else free,
    )


def host_facts(found: HostGpus, chosen: tuple[int, ...]) -> dict[str, Any]:
    """Which of the host's GPUs were taken, how they are wired, and who holds memory of them now."""
    return {
        "gpus": {
            "proposed": list(chosen),
            "wiring": found.wiring_of(chosen),
            "holders": [holder.model_dump() for holder in found.holders],
            "free_gib": {gpu.index: round(gpu.memory_free_bytes / GIB, 2) for gpu in found.gpus},
        }
    }


def _table(
    model: ModelSpec,
    flags: ServeFlags,
    weights: WeightBytes | None,
    figures: GpuFigures,
    *,
    version: str,
    calibration: Calibration | None,
) -> tuple[ParallelRow, ...]:
    """Every tensor x pipeline size that the host's GPUs allow."""
    if impossible(model, flags):
        flags = flags.with_value("--tensor-parallel-size", 1, "table")
    situation = Situation.of(
        model,
        flags,
        weights,
        gpu_total_bytes=int((figures.memory_gib or _ANY_GIB) * GIB),
        engine_version=version,
        gpu_name=figures.name,
        calibration=calibration,
    )
    return parallel_table(situation, figures.n_gpus or flags.n_gpus)


def _refuse_too_large(host: Host, weights_bytes: int) -> None:
    """Weights that the disk of the host's models can't hold are a mistake in the number."""
    directory = host.settings.models_dir
    size = gather_room(host, directory).disk_size_bytes.get(directory)
    if size is not None and weights_bytes > size:
        said = f"{weights_bytes / 1e9:.0f} GB of weights are larger than the disk of {directory} ({size / 1e9:.0f} GB)"
        raise BadParameter(said, host=host.settings.alias)


def _flags(given: PlanInput, figures: GpuFigures, version: str) -> ServeFlags:
    flags = parse_serve_arguments(
        given.flags,
        engine_version=version,
        gpu_total_bytes=int((figures.memory_gib or _ANY_GIB) * GIB),
        gpu_name=figures.name,
        environment=given.environment,
        origin="command line",
    )
    wrong = [finding.summary for finding in flags.findings if finding.state is State.CRITICAL]
    if wrong:
        raise BadParameter("; ".join(wrong))
    return flags


def _model(config: Mapping[str, Any], flags: ServeFlags) -> ModelSpec:
    """The model; --quantization on a checkpoint that brings none packs it while it is loaded."""
    model = parse_model_config(overridden(config, flags.value("--hf-overrides")))
    asked = flags.value("--quantization")
    if not asked or model.quantization.method is not None or not isinstance(asked, str):
        return model
    return model.model_copy(update={"quantization": read_quantization({}, asked), "is_packed_on_load": True})


def _refuse_nonsense(model: ModelSpec, flags: ServeFlags, figures: GpuFigures) -> None:
    wrong = list(senseless(model, flags, n_gpus=figures.n_gpus))
    if figures.free_gib is not None and figures.memory_gib is not None and figures.free_gib > figures.memory_gib:
        wrong.append(f"--free-gib {figures.free_gib:g} is more than the GPU's {figures.memory_gib:g} GiB")
    if wrong:
        raise BadParameter("; ".join(wrong))


def _weights(given: PlanInput, report: CheckpointReport | None) -> WeightBytes | None:
    if given.weights_bytes is not None:
        return WeightBytes(total_bytes=given.weights_bytes)
    return weights_of(report) if report is not None and report.bytes_by_dtype else None


def _planned(
    model: ModelSpec,
    flags: ServeFlags,
    weights: WeightBytes | None,
    figures: GpuFigures,
    *,
    version: str,
    calibration: Calibration | None,
) -> OfflinePlan:
    if figures.memory_gib is None and flags.kv_cache_memory_bytes is None:
        raise BadParameter("the GPU's size is not known: --gpu-memory-gib, --host or --kv-cache-memory-bytes is needed")
    total = int((figures.memory_gib or _ENDLESS_GIB) * GIB)
    plan = plan_memory(
        model,
        flags,
        weights=weights,
        gpu_total_bytes=total,
        engine_version=version,
        gpu_name=figures.name,
        free_gib=figures.free_gib,
        calibration=calibration,
    )
    remedies = remedies_of(
        plan.cause,
        model,
        flags,
        weights=weights,
        gpu_total_bytes=total,
        engine_version=version,
        gpu_name=figures.name,
        free_gib=figures.free_gib,
        calibration=calibration,
        n_gpus=figures.n_gpus,
    )
    return OfflinePlan(
        plan=plan,
        remedies=remedies,
        engine_version=version,
        is_gpu_known=figures.memory_gib is not None,
    )
