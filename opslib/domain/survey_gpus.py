"""What nvidia-smi and the kernel say of a host's GPUs: who holds them, and what trouble they had since boot."""

import re
from collections.abc import Iterator

from opslib.domain.diagnosis_catalogue import cause_entry
from opslib.domain.diagnosis_signatures import list_signatures
from opslib.domain.facts.gpu import Gpu, parse_gpu_memory, parse_gpu_processes
from opslib.domain.facts.journal import parse_journal_entry
from opslib.domain.states import State, worst
from opslib.domain.survey import GpuHolder, SurveyCheck, age_words
from opslib.domain.survey_reading import CommandAnswer, SurveyReading
from opslib.errors import UnexpectedAnswer

GIB = 2**30
HELD_BYTES = GIB  # less is a display or a context, no model
SLOW_S = 4.0  # of a nvidia-smi whose driver is awake
_XID = re.compile(r"Xid \(PCI:[^)]*\): (\d+)")
_KERNEL_CAUSES = ("gpu-hardware/", "host-memory/oom-killed")


def judge_gpus(reading: SurveyReading) -> tuple[tuple[Gpu, ...], tuple[GpuHolder, ...], SurveyCheck]:
    """The GPUs, who holds their memory, and what both come to."""
    answer = reading.answers.get("gpus")
    if answer is None:
        return (
            (),
            (),
            SurveyCheck(
                name="gpus",
                state=State.UNKNOWN,
                summary="GPUs: nvidia-smi never came back",
                next_step=first_remedy("gpu-hardware/hang"),
            ),
        )
    problem = _gpu_problem(answer)
    if problem:
        return (), (), problem
    try:
        gpus = parse_gpu_memory(answer.text)
        holders = tuple(_holders(reading, gpus))
    except UnexpectedAnswer as error:
        return (), (), SurveyCheck(name="gpus", state=State.UNKNOWN, summary=f"GPUs: {error.message}")
    return gpus, holders, _judge_holders(reading, gpus, holders)


def headroom(gpus: tuple[Gpu, ...]) -> int | None:
    """The least memory in bytes that is free on a GPU in use; on any GPU where none is; None without GPUs."""
    held = [gpu for gpu in gpus if gpu.memory_used_bytes >= HELD_BYTES]
    return min((gpu.memory_free_bytes for gpu in held or gpus), default=None)


def _gpu_problem(answer: CommandAnswer) -> SurveyCheck | None:
    said = " ".join((answer.error or answer.text).split())[:200]
    if answer.problem == "missing" or answer.exit_status == 127:
        return SurveyCheck(name="gpus", state=State.OK, summary="no GPU: there is no nvidia-smi")
    if answer.problem == "timeout":
        summary = f"GPUs: nvidia-smi hangs ({said}): suspected gpu-hardware/hang"
        return SurveyCheck(
            name="gpus", state=State.CRITICAL, summary=summary, next_step=first_remedy("gpu-hardware/hang")
        )
    if "No devices were found" in answer.text:
        return SurveyCheck(
            name="gpus",
            state=State.CRITICAL,
            summary="GPUs: the driver finds no device",
            next_step=first_remedy("gpu-driver/no-gpu-visible"),
        )
    if answer.exit_status != 0:
        cause = "gpu-hardware/fell-off-bus" if re.search(r"lost|fallen", said) else "gpu-driver/no-gpu-visible"
        return SurveyCheck(
            name="gpus", state=State.CRITICAL, summary=f"GPUs: {said}: {cause}", next_step=first_remedy(cause)
        )
    return None


def _holders(reading: SurveyReading, gpus: tuple[Gpu, ...]) -> Iterator[GpuHolder]:
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    known = {process.pid: process for process in reading.processes}
    for held in parse_gpu_processes(reading.answer("gpu_processes").text):
        process = known.get(held.pid)
        started_at = process.started_at if process else None
        yield GpuHolder(
            gpu_index=indices.get(held.gpu_uuid, -1),
            pid=held.pid,
            name=_name(process.name if process else "", held.name),
            user=process.user if process else "",
            unit=(process.unit if process else "").removesuffix(".service"),
            memory_used_bytes=held.memory_used_bytes,
            age_s=round((reading.ended_at - started_at).total_seconds(), 1) if started_at else None,
        )


def _name(comm: str, said: str) -> str:
    """The kernel's name of a process (cut after 15 characters), or nvidia-smi's where that goes on."""
    return said if not comm or said.startswith(comm) else comm


def _judge_holders(reading: SurveyReading, gpus: tuple[Gpu, ...], holders: tuple[GpuHolder, ...]) -> SurveyCheck:
    engines = {unit.id.removesuffix(".service") for unit in reading.units}
    strangers = [held for held in holders if held.unit not in engines and (held.memory_used_bytes or 0) >= HELD_BYTES]
    named = {held.gpu_index for held in holders}
    nameless = [gpu for gpu in gpus if gpu.memory_used_bytes >= HELD_BYTES and gpu.index not in named]
    evidence = [_holder_words(held) for held in strangers]
    evidence += [
        f"GPU {gpu.index}: {gpu.memory_used_bytes / GIB:.1f} GiB held by nobody that nvidia-smi names"
        for gpu in nameless
    ]
    if evidence:
        more = f" (and {len(evidence) - 1} more)" if len(evidence) > 1 else ""
        step = "see whether it is still wanted; an engine can't use this memory"
        return SurveyCheck(
            name="gpus", state=State.WARNING, summary=evidence[0] + more, evidence=tuple(evidence), next_step=step
        )
    total = gpus[0].memory_total_bytes / GIB if gpus else 0
    n_held = sum(gpu.memory_used_bytes >= HELD_BYTES for gpu in gpus)
    summary = f"{len(gpus)} GPUs of {total:.1f} GiB, {n_held} held by engines"
    took_s = reading.answer("gpus").duration_s or 0.0
    if took_s < SLOW_S:
        return SurveyCheck(name="gpus", state=State.OK, summary=summary)
    step = "systemctl enable --now nvidia-persistenced, which keeps the driver awake"
    summary += f"; nvidia-smi took {took_s:.0f} s, is persistence mode off?"
    return SurveyCheck(name="gpus", state=State.WARNING, summary=summary, next_step=step)


def _holder_words(held: GpuHolder) -> str:
    size = f"{held.memory_used_bytes / GIB:.1f} GiB" if held.memory_used_bytes is not None else "memory"
    age = age_words(held.age_s) if held.age_s is not None else "age unknown"
    where = held.unit or "no unit"
    return f"GPU {held.gpu_index}: {size} held by {held.name} (pid {held.pid}, {held.user or '?'}, {where}, {age})"


def judge_kernel(reading: SurveyReading, *, has_gpus: bool) -> SurveyCheck:
    """What the kernel's lines since boot tell of GPUs and memory, or why nobody can know."""
    kernel = reading.kernel
    if kernel is None or kernel.problem or not kernel.n_lines:
        return _no_kernel_lines(reading, has_gpus=has_gpus)
    troubles = [trouble for line in kernel.lines if (trouble := _trouble(parse_journal_entry(line).message))]
    if not troubles:
        return SurveyCheck(
            name="kernel",
            state=State.OK,
            summary=f"no Xid, ECC or memory trouble in {kernel.n_lines:,} kernel lines since boot",
        )
    state = worst(state for state, _, _ in troubles)
    _, cause, last = [trouble for trouble in troubles if trouble[0] is state][-1]
    summary = f"kernel: {cause}: {last}" + (
        f" (and {len(troubles) - 1} more lines since boot)" if len(troubles) > 1 else ""
    )
    lines = tuple(line for _, _, line in troubles[-8:])
    return SurveyCheck(name="kernel", state=state, summary=summary, evidence=lines, next_step=first_remedy(cause))


def _no_kernel_lines(reading: SurveyReading, *, has_gpus: bool) -> SurveyCheck:
    kernel = reading.kernel
    if reading.container:
        why, step = f"a container ({reading.container}) has no kernel lines of its own", "ask the machine around it"
    elif kernel is not None and kernel.problem:
        why, step = (
            f"kernel lines can't be read: {kernel.problem}",
            "put the login into the group systemd-journal, or allow sudo",
        )
    elif reading.identity.uid == 0:
        why, step = "the journal holds no kernel lines of this boot", ""
    else:
        why, step = (
            f"{reading.identity.user} may not read kernel lines",
            "put the login into the group systemd-journal, or allow sudo",
        )
    state = State.UNKNOWN if has_gpus or not (reading.container or reading.identity.uid == 0) else State.OK
    return SurveyCheck(
        name="kernel", state=state, summary=f"{why}: Xid and ECC errors would not be seen", next_step=step
    )


def _trouble(message: str) -> tuple[State, str, str] | None:
    """State, cause and shortened line of a kernel line that tells of trouble; the diagnosis's own signatures decide."""
    for signature in list_signatures():
        if signature.cause.startswith(_KERNEL_CAUSES) and re.search(signature.pattern, message):
            state = State.WARNING if signature.cause.startswith("host-memory/") else State.CRITICAL
            return state, signature.cause, message[:200]
    xid = _XID.search(message)
    return (State.WARNING, f"Xid {xid[1]}", message[:200]) if xid else None


def first_remedy(cause: str) -> str:
    """What the catalogue of causes says to do first."""
    remedies = cause_entry(cause).remedies if not cause.startswith("Xid") else ()
    return remedies[0].text if remedies else "see the NVIDIA Xid catalogue"
