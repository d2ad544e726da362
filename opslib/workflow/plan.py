"""Plan an engine's GPU memory for a host: its GPUs, its engine's version, a checkpoint and real flags."""

import math
import re
from collections.abc import Mapping, Sequence

from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.engine_defaults import GIB
from opslib.domain.facts.gpu import Gpu
from opslib.domain.host import Host
from opslib.domain.memory import MemoryPlan, ObservedFigures, WeightBytes, plan_memory
from opslib.domain.memory_remedy import Remedy, solve_remedies
from opslib.domain.memory_situation import Calibration, Situation
from opslib.domain.model_spec import ModelSpec, overridden, parse_model_config
from opslib.domain.states import State, Value, worst
from opslib.domain.vllm_flags import ServeFlags, parse_serve_arguments
from opslib.errors import BadParameter, UnexpectedAnswer
from opslib.workflow.facts import gather_gpus

_REPLICATED_PARTS = ("norm", "router", "latent", "vision")  # whole on every tensor-parallel rank
_IDLE_GIB = 0.7  # what a driver may hold of an idle GPU; a guard that asks for it would wait for ever


class HostPlan(Value):
    """A memory plan with everything it rests on: the GPUs chosen, the model, the flags as understood."""

    memory: MemoryPlan
    model: ModelSpec
    weights: WeightBytes
    flags: ServeFlags
    gpus: tuple[Gpu, ...] = ()
    required_free_gib: float = 0.0  # per GPU, for the guard
    engine_version: str = ""
    calibration: Calibration | None = None  # what earlier launches of this host taught
    free_gib: float | None = None  # per GPU, beside other units; None: all of it

    @property
    def situation(self) -> Situation | None:
        """What the plan was made from, for what-if questions; None for a CPU engine."""
        if not self.gpus:
            return None
        return Situation.of(
            self.model,
            self.flags,
            self.weights,
            gpu_total_bytes=_smallest(self.gpus),
            engine_version=self.engine_version,
            gpu_name=self.gpus[0].name,
            free_gib=self.free_gib,
            calibration=self.calibration,
        )

    def remedy(self, cause: str, observed: ObservedFigures | None = None) -> Remedy | None:
        """The change of one flag that would answer `cause`, from the same inputs."""
        situation = self.situation
        if situation is None:
            return None
        return next(iter(solve_remedies(situation.observing(observed or ObservedFigures()), cause)), None)


def gather_engine_version(host: Host) -> str:
    """What `vllm --version` says ("0.15.1"); "" where it can't be asked. It imports torch: this takes seconds."""
    result = host.run((host.settings.vllm, "--version"), timeout_s=120.0)
    found = re.search(r"\d+\.\d+(\.\d+)?\S*", result.text) if result.is_success else None
    return found[0] if found else ""


def weights_of(report: CheckpointReport) -> WeightBytes:
    """A verified checkpoint's tensor bytes, and those that each rank holds whole."""
    replicated = sum(report.bytes_by_part.get(part, 0) for part in _REPLICATED_PARTS)
    return WeightBytes(total_bytes=sum(report.bytes_by_dtype.values()), replicated_bytes=replicated)


def plan_for_host(
    host: Host,
    report: CheckpointReport,
    flags: Sequence[str],
    *,
    gpus: Sequence[int] = (),
    engine_version: str | None = None,
    observed: ObservedFigures | None = None,
    calibration: Calibration | None = None,
    environment: Mapping[str, str] | None = None,
    free_gib: float | None = None,
) -> HostPlan:
    """Whether the verified checkpoint fits the named GPUs of the host with these `vllm serve` flags.

    The smallest of the GPUs counts; none means a CPU engine. `engine_version` None asks the host's engine; the
    `environment` is the engine's; `free_gib` is what other units on the same GPUs leave it (all have one budget).
    Raises BadParameter for a GPU that the host hasn't got, UnexpectedAnswer where the checkpoint has no usable config.
    """
    if report.config is None:
        raise UnexpectedAnswer(f"{report.path} has no usable config.json", host=host.settings.alias)
    chosen = _choose(host, gpus)
    version = gather_engine_version(host) if engine_version is None else engine_version
    total = _smallest(chosen) if chosen else None
    name = chosen[0].name if chosen else ""
    parsed = parse_serve_arguments(
        flags, engine_version=version, gpu_total_bytes=total, gpu_name=name, environment=environment
    )
    model, weights = parse_model_config(overridden(report.config, parsed.value("--hf-overrides"))), weights_of(report)
    memory = plan_memory(
        model,
        parsed,
        weights=weights,
        gpu_total_bytes=total,
        engine_version=version,
        observed=observed,
        gpu_name=name,
        free_gib=free_gib,
        calibration=calibration,
    )
    required = _required_free_gib(memory)
    return HostPlan(
        memory=_with_host_findings(memory, parsed, chosen, required),
        model=model,
        weights=weights,
        flags=parsed,
        gpus=chosen,
        required_free_gib=required,
        engine_version=version,
        calibration=calibration,
        free_gib=free_gib,
    )


def _choose(host: Host, gpus: Sequence[int]) -> tuple[Gpu, ...]:
    if not gpus:
        return ()
    present: Mapping[int, Gpu] = {gpu.index: gpu for gpu in gather_gpus(host)}
    missing = [index for index in gpus if index not in present]
    if missing:
        has = f"it has {', '.join(str(index) for index in present)}" if present else "it has none"
        raise BadParameter(f"no GPU {', '.join(str(index) for index in missing)}; {has}", host=host.settings.alias)
    return tuple(present[index] for index in gpus)


def _smallest(gpus: Sequence[Gpu]) -> int:
    return min(gpu.memory_usable_bytes for gpu in gpus)


def _required_free_gib(memory: MemoryPlan) -> float:
    """The budget and a CUDA context, rounded up to 0.1 GiB, but never more than an idle GPU has."""
    if not memory.terms:
        return 0.0
    wanted = memory.term("budget").high_bytes / GIB + 0.5
    return math.floor(min(math.ceil(wanted * 10), (memory.gpu_total_bytes / GIB - _IDLE_GIB) * 10)) / 10


def _with_host_findings(memory: MemoryPlan, flags: ServeFlags, gpus: Sequence[Gpu], required_gib: float) -> MemoryPlan:
    """Adds what only the host can say: too few GPUs for the ranks is critical, memory held now is a note."""
    notes = [
        f"GPU {gpu.index} has {gpu.memory_free_bytes / GIB:.1f} GiB free now, {required_gib:.1f} are needed: "
        "the unit's guard waits for it"
        for gpu in gpus
        if gpu.memory_free_bytes < required_gib * GIB
    ]
    update: dict[str, object] = {"notes": (*memory.notes, *notes)}
    if flags.findings:
        update["state"] = worst([memory.state, *(finding.state for finding in flags.findings)])
        first = flags.findings[0]
        told = "the engine would not start" if first.state is State.CRITICAL else memory.summary
        update["summary"] = f"{first.summary}; {told}"
    if gpus and memory.n_gpus > len(gpus):
        update["state"] = State.CRITICAL
        update["summary"] = f"does not start: {memory.n_gpus} ranks need as many GPUs, {len(gpus)} are given"
    return memory.model_copy(update=update)
