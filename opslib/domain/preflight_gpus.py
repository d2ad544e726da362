"""Checks of the GPUs before a launch: are they there, sound, driven well enough, and free?"""

from collections.abc import Iterator

from opslib.domain.facts.gpu import Gpu, parse_gpu_memory
from opslib.domain.facts.gpu_health import GpuHealth
from opslib.domain.orphan import judge_owner
from opslib.domain.preflight_look import GIB, Look, PreflightCheck, critical, ok, unknown, warning
from opslib.domain.preflight_reading import HolderReading
from opslib.domain.states import State
from opslib.domain.survey import GpuHolder, age_words
from opslib.domain.survey_gpus import first_remedy, judge_kernel
from opslib.errors import UnexpectedAnswer

# The oldest driver that runs a CUDA release: NVIDIA, "CUDA Compatibility", minor version compatibility.
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
_STEADY_BYTES = 256 * 2**20
_IDLE_BYTES = 0.7 * GIB  # what a driver may hold of an idle GPU
_CPU = "the engine runs on the CPU"


def check_gpus(look: Look) -> PreflightCheck:
    """Are the chosen GPUs there?"""
    if not look.wanted.gpus:
        return ok(f"not asked: {_CPU}")
    found = look.gpu_check
    if not look.gpus and found.state is State.UNKNOWN:
        return unknown(found.summary, found.next_step)
    cause = "gpu-driver/no-gpu-visible"
    if not look.gpus:
        words = f"GPUs {_words(look.wanted.gpus)} are wanted; {found.summary}"
        return critical(words, found.next_step or first_remedy(cause), cause=cause)
    missing = sorted(set(look.wanted.gpus) - {gpu.index for gpu in look.gpus})
    if missing:
        there = _words([gpu.index for gpu in look.gpus])
        step = "choose `gpus` among those that are there, or find out where the others are (nvidia-smi, dmesg)"
        return critical(f"GPU {_words(missing)} is not there; the host has {there}", step, cause=cause)
    gpu = look.chosen[0]
    return ok(f"{len(look.chosen)} of {len(look.gpus)} GPUs, {gpu.name}, {gpu.memory_total_bytes / GIB:.1f} GiB each")


def check_driver(look: Look) -> PreflightCheck:
    """Does the driver run the CUDA that the engine was built for?"""
    if not look.wanted.gpus:
        return ok(f"not asked: {_CPU}")
    engine = look.reading.engine
    if look.health is None or not look.health.driver_version:
        return unknown("the driver's version is not known")
    driver = look.health.driver_version
    if engine is None or not engine.cuda:
        return unknown(f"driver {driver}; which CUDA the engine needs is not known")
    needed, known = _version(engine.cuda), _version(look.health.cuda_version)
    oldest = OLDEST_DRIVER.get(needed[0])
    words = f"driver {driver} (CUDA {look.health.cuda_version or 'unknown'}), the engine needs CUDA {engine.cuda}"
    cause = "gpu-driver/too-old"
    if (oldest and _version(driver) < oldest) or (known[0] and known[0] < needed[0]):
        return critical(words, first_remedy(cause), cause=cause)
    if known[0] == needed[0] and known < needed:
        step = "it runs, but kernels that are compiled while loading may be refused: a newer driver is surer"
        return warning(words, step, cause=cause)
    return ok(words)


def check_gpu_health(look: Look) -> PreflightCheck:
    """ECC errors, rows that were remapped, clocks that are held down, what the driver itself asks for."""
    if not look.wanted.gpus:
        return ok(f"not asked: {_CPU}")
    if look.health is None:
        return unknown("the GPUs' condition is not known: nvidia-smi --query --xml-format gave no answer")
    health = {gpu.uuid: gpu for gpu in look.health.gpus}
    seen = [(gpu, health[gpu.uuid]) for gpu in look.chosen if gpu.uuid in health]
    if not seen:
        return unknown("the GPUs' condition is not known")
    grave = [words for gpu, found in seen for words in _grave(gpu, found)]
    light = [words for gpu, found in seen for words in _light(gpu, found)]
    if grave:
        return critical(grave[0], "leave it out of `gpus`, or reset it (nvidia-smi --gpu-reset)", *grave, *light)
    if light:
        return warning(light[0], "see nvidia-smi --query; a reset clears what is pending", *light)
    return ok("no ECC error, no row to remap, clocks not held down")


def _grave(gpu: Gpu, found: GpuHealth) -> Iterator[str]:
    if found.recovery_action:
        yield f"GPU {gpu.index}: the driver asks for: {found.recovery_action}"
    if found.has_remap_failed:
        yield f"GPU {gpu.index}: a faulty row of its memory can't be remapped"
    if found.compute_mode == "Prohibited":
        yield f"GPU {gpu.index}: compute mode Prohibited"


def _light(gpu: Gpu, found: GpuHealth) -> Iterator[str]:
    if found.n_uncorrected:
        yield f"GPU {gpu.index}: {found.n_uncorrected} uncorrected ECC errors since the driver was loaded"
    if found.is_remap_pending:
        yield f"GPU {gpu.index}: a row of its memory is to be remapped at the next reset"
    if found.slowdowns:
        yield f"GPU {gpu.index}: its clocks are held down ({', '.join(found.slowdowns)})"
    if found.is_partitioned:
        yield f"GPU {gpu.index}: it is partitioned (MIG), and no index names the whole"


def check_kernel(look: Look) -> PreflightCheck:
    """What the kernel said of GPUs and memory since boot: a history, so never more than a warning."""
    found = judge_kernel(look.reading.survey, has_gpus=bool(look.wanted.gpus))
    state = State.WARNING if found.state is State.CRITICAL else found.state
    return PreflightCheck(**{**found.model_dump(), "state": state})


def check_gpu_memory(look: Look) -> PreflightCheck:
    """Is the memory that the engine will take free, steadily; else who holds it?"""
    if not look.wanted.gpus:
        return ok(f"not asked: {_CPU}")
    if not look.chosen:
        return unknown("how much GPU memory is free is not known")
    orphans = {held.pid: proof for held in look.holders if (proof := _orphan_proof(look, held))}
    short = [gpu for gpu in look.chosen if _free_bytes(look, gpu, orphans) < _needed_bytes(look, gpu)]
    if not short:
        least = min(look.chosen, key=lambda gpu: _free_bytes(look, gpu, orphans))
        free = _free_bytes(look, least, orphans) / GIB
        own = " once the unit has given back its own" if _own_bytes(look, least, orphans) else ""
        moving = _moving(look, least)
        words = f"at least {free:.1f} GiB free on each GPU{own}, {_needed_bytes(look, least) / GIB:.1f} are wanted"
        return ok(words + (f"; {moving}" if moving else ""))
    return _held(look, short[0], orphans)


def _held(look: Look, gpu: Gpu, orphans: dict[int, str]) -> PreflightCheck:
    """The memory is not free: whether somebody will let go of it decides."""
    cause = "gpu-memory/held-by-another"
    others = [held for held in look.holders if held.gpu_index == gpu.index and not _is_own(look, held, orphans)]
    others.sort(key=lambda held: -(held.memory_used_bytes or 0))
    evidence = [_words_of(held, orphans) for held in others]
    free = _free_bytes(look, gpu, orphans) / GIB
    words = f"GPU {gpu.index}: {free:.1f} GiB free, {_needed_bytes(look, gpu) / GIB:.1f} are wanted"
    words += f"; {evidence[0]}" if evidence else "; held by nobody that nvidia-smi names"
    left_over = next((held for held in others if held.pid in orphans), None)
    if left_over:
        return critical(words, f"it is nobody's any more: sudo kill {left_over.pid}", *evidence, cause=cause)
    if any(_unit_state(look, held) == "active" for held in others):
        step = f"stop {others[0].unit or 'its unit'}, choose other `gpus`, or lower gpu_memory_utilization"
        return critical(words, step, *evidence, cause=cause)
    if look.wanted.guard_wait_s <= 0:
        return critical(words, "see whether it is still wanted; nothing would wait for it", *evidence, cause=cause)
    moving = _moving(look, gpu)
    step = f"see whether it is still wanted; the unit would wait {look.wanted.guard_wait_s} s for it"
    return warning(words + (f"; {moving}" if moving else ""), step, *evidence, cause=cause)


def _needed_bytes(look: Look, gpu: Gpu) -> float:
    """What vLLM asks to be free at its start (worker/gpu_worker.py: the budget's share of all that CUDA sees)."""
    usable = gpu.memory_usable_bytes
    return min(look.wanted.gpu_memory_utilization * usable, usable - _IDLE_BYTES)


def _free_bytes(look: Look, gpu: Gpu, orphans: dict[int, str]) -> int:
    return gpu.memory_free_bytes + _own_bytes(look, gpu, orphans)


def _own_bytes(look: Look, gpu: Gpu, orphans: dict[int, str]) -> int:
    mine = [held for held in look.holders if held.gpu_index == gpu.index and _is_own(look, held, orphans)]
    return sum(held.memory_used_bytes or 0 for held in mine)


def _is_own(look: Look, held: GpuHolder, orphans: dict[int, str]) -> bool:
    return held.unit in look.own_units and held.pid not in orphans


def _owner(look: Look, held: GpuHolder) -> HolderReading | None:
    return next((owner for owner in look.reading.owners if owner.pid == held.pid), None)


def _unit_state(look: Look, held: GpuHolder) -> str:
    owner = _owner(look, held)
    return owner.unit_state if owner else ""


def _orphan_proof(look: Look, held: GpuHolder) -> str:
    """Why the process is a left-over engine; "" where it isn't one, or that is in doubt."""
    owner = _owner(look, held)
    if owner is None:
        return ""
    judged = judge_owner(owner.model_copy(update={"command": "vllm" if owner.is_engine_command else ""}))
    return judged.proof if judged.is_orphan else ""


def _words_of(held: GpuHolder, orphans: dict[int, str]) -> str:
    size = f"{held.memory_used_bytes / GIB:.1f} GiB" if held.memory_used_bytes is not None else "memory"
    age = f", {age_words(held.age_s)}" if held.age_s is not None else ""
    if held.pid in orphans:
        return f"a left-over engine holds {size}: {orphans[held.pid]} ({held.user or '?'}{age})"
    return f"{held.name} holds {size} (pid {held.pid}, {held.user or '?'}, {held.unit or 'no unit'}{age})"


def _moving(look: Look, gpu: Gpu) -> str:
    """How free memory went over the samples, where it was not steady."""
    free = [gpu.memory_free_bytes]
    for text in look.reading.samples:
        try:
            free += [sample.memory_free_bytes for sample in parse_gpu_memory(text) if sample.index == gpu.index]
        except UnexpectedAnswer:
            continue
    if max(free) - min(free) < _STEADY_BYTES:
        return ""
    return f"not steady: {free[0] / GIB:.1f}, then {free[-1] / GIB:.1f} GiB free"


def _version(text: str) -> tuple[int, int]:
    """Major and minor of a version, 0 where there is none.

    >>> _version("580.95.05"), _version("12.8"), _version("")
    ((580, 95), (12, 8), (0, 0))
    """
    words = [word for word in text.split(".") if word.isdecimal()]
    return (int(words[0]) if words else 0, int(words[1]) if len(words) > 1 else 0)


def _words(indices: "tuple[int, ...] | list[int]") -> str:
    return ", ".join(map(str, indices))
