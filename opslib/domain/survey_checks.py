"""What a survey's reading comes to, topic by topic: GPUs, kernel, disks, memory, clock, journal, engine."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from opslib.domain.diagnosis_catalogue import cause_entry
from opslib.domain.diagnosis_signatures import list_signatures
from opslib.domain.facts.gpu import Gpu, parse_gpu_memory, parse_gpu_processes
from opslib.domain.facts.journal import parse_journal_entry
from opslib.domain.facts.ports import Listener, parse_listeners
from opslib.domain.states import State, worst
from opslib.domain.survey import (
    Clock,
    CommandAnswer,
    EngineUnit,
    Filesystem,
    GpuHolder,
    HostSurvey,
    SurveyCheck,
    SurveyReading,
    age_words,
)
from opslib.domain.survey_units import judge_unit
from opslib.errors import UnexpectedAnswer

GIB = 2**30
CLOCK_S = 2.0  # farther apart, times of host and controller can't be laid side by side
HELD_BYTES = GIB  # less is a display or a context, no model
SHM_BYTES = GIB
_DISK_PERCENT = 5.0
_MEMORY_PERCENT = 5.0
_BORROWED = (
    "disk models",
    "disk /",
    "memory",
    "journal",
)  # a rehearsal host has these from the machine that it runs on
_XID = re.compile(r"Xid \(PCI:[^)]*\): (\d+)")
_KERNEL_CAUSES = ("gpu-hardware/", "host-memory/oom-killed")


def judge_survey(
    reading: SurveyReading,
    *,
    host: str,
    received_at: datetime,
    duration_s: float,
    is_rehearsal: bool = False,
    is_without_sudo: bool = False,
) -> HostSurvey:
    """What a reading comes to, received at `received_at` after `duration_s` (controller's clock)."""
    units = _units(reading, host)
    gpus, holders, gpu_check = _gpus(reading)
    clock = measure_clock(reading, received_at=received_at, duration_s=duration_s)
    checks = [
        *_unit_checks(reading, units),
        gpu_check,
        _kernel(reading, has_gpus=bool(gpus)),
        *_disks(reading),
        _memory(reading),
        _clock_check(clock),
        _journal(reading),
        _engine(reading),
        *([_rights()] if is_without_sudo else []),
    ]
    if is_rehearsal:
        checks = [_borrowed(check) if check.name in _BORROWED else check for check in checks]
    state = worst(check.state for check in checks)
    told = [check for check in checks if check.state is state]
    return HostSurvey(
        host=host,
        state=state,
        summary=_summary(state, told, units, gpus),
        next_step=told[0].next_step,
        checks=tuple(checks),
        surveyed_at=received_at,
        duration_s=round(duration_s, 3),
        identity=reading.identity,
        units=units,
        gpus=gpus,
        holders=holders,
        driver_version=gpus[0].driver_version if gpus else "",
        engine_version=reading.engine.version,
        systemd_version=_systemd_version(reading),
        filesystems=reading.filesystems,
        memory=reading.memory,
        clock=clock,
        uptime_s=reading.uptime_s,
    )


def measure_clock(reading: SurveyReading, *, received_at: datetime, duration_s: float) -> Clock:
    """How far the host's clock is ahead, the round trip taken to be as long there as back (as NTP does, RFC 5905)."""
    sent_at = received_at - timedelta(seconds=duration_s)
    there = (reading.began_at - sent_at).total_seconds()
    back = (reading.ended_at - received_at).total_seconds()
    busy_s = (reading.ended_at - reading.began_at).total_seconds()
    uncertainty_s = max(0.0, duration_s - busy_s) / 2
    return Clock(offset_s=round((there + back) / 2, 3), uncertainty_s=round(uncertainty_s, 3))


def _summary(state: State, told: list[SurveyCheck], units: tuple[EngineUnit, ...], gpus: tuple[Gpu, ...]) -> str:
    if state is not State.OK:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        return told[0].summary + more
    if units:
        return "; ".join(unit.summary for unit in units)
    return "no engine unit, " + (f"{len(gpus)} free GPUs" if gpus else "no GPU")


def _units(reading: SurveyReading, host: str) -> tuple[EngineUnit, ...]:
    processes = {process.pid: process for process in reading.processes}
    listeners = _listeners(reading)
    judged = [
        judge_unit(unit, host=host, now=reading.ended_at, listeners=listeners, processes=processes)
        for unit in reading.units
    ]
    return tuple(judged)


def _listeners(reading: SurveyReading) -> tuple[Listener, ...]:
    """Who listens where; nobody known where ss isn't there or answers something else."""
    try:
        return parse_listeners(_answer(reading, "listeners").text)
    except UnexpectedAnswer:
        return ()


def _unit_checks(reading: SurveyReading, units: tuple[EngineUnit, ...]) -> Iterator[SurveyCheck]:
    if reading.units_problem:
        yield SurveyCheck(name="units", state=State.UNKNOWN, summary=_one_line(f"units: {reading.units_problem}"))
    elif not units:
        yield SurveyCheck(name="units", state=State.OK, summary="no unit runs an inference engine")
    for unit in units:
        yield SurveyCheck(name=f"unit {unit.unit}", state=unit.state, summary=unit.summary, next_step=unit.next_step)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _gpus(reading: SurveyReading) -> tuple[tuple[Gpu, ...], tuple[GpuHolder, ...], SurveyCheck]:
    answer = reading.answers.get("gpus")
    if answer is None:
        return (
            (),
            (),
            SurveyCheck(
                name="gpus",
                state=State.UNKNOWN,
                summary="GPUs: nvidia-smi never came back",
                next_step=_remedy("gpu-hardware/hang"),
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


def _gpu_problem(answer: CommandAnswer) -> SurveyCheck | None:
    said = " ".join((answer.error or answer.text).split())[:200]
    if answer.problem == "missing" or answer.exit_status == 127:
        return SurveyCheck(name="gpus", state=State.OK, summary="no GPU: there is no nvidia-smi")
    if answer.problem == "timeout":
        summary = f"GPUs: nvidia-smi hangs ({said}): suspected gpu-hardware/hang"
        return SurveyCheck(name="gpus", state=State.CRITICAL, summary=summary, next_step=_remedy("gpu-hardware/hang"))
    if "No devices were found" in answer.text:
        return SurveyCheck(
            name="gpus",
            state=State.CRITICAL,
            summary="GPUs: the driver finds no device",
            next_step=_remedy("gpu-driver/no-gpu-visible"),
        )
    if answer.exit_status != 0:
        cause = "gpu-hardware/fell-off-bus" if re.search(r"lost|fallen", said) else "gpu-driver/no-gpu-visible"
        return SurveyCheck(
            name="gpus", state=State.CRITICAL, summary=f"GPUs: {said}: {cause}", next_step=_remedy(cause)
        )
    return None


def _holders(reading: SurveyReading, gpus: tuple[Gpu, ...]) -> Iterator[GpuHolder]:
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    known = {process.pid: process for process in reading.processes}
    for held in parse_gpu_processes(_answer(reading, "gpu_processes").text):
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
    return SurveyCheck(
        name="gpus", state=State.OK, summary=f"{len(gpus)} GPUs of {total:.1f} GiB, {n_held} held by engines"
    )


def _holder_words(held: GpuHolder) -> str:
    size = f"{held.memory_used_bytes / GIB:.1f} GiB" if held.memory_used_bytes is not None else "memory"
    age = age_words(held.age_s) if held.age_s is not None else "age unknown"
    where = held.unit or "no unit"
    return f"GPU {held.gpu_index}: {size} held by {held.name} (pid {held.pid}, {held.user or '?'}, {where}, {age})"


def _kernel(reading: SurveyReading, *, has_gpus: bool) -> SurveyCheck:
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
    return SurveyCheck(name="kernel", state=state, summary=summary, evidence=lines, next_step=_remedy(cause))


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


def _disks(reading: SurveyReading) -> Iterator[SurveyCheck]:
    for role, name in (("models", "disk models"), ("root", "disk /"), ("shm", "shared memory")):
        yield _disk(role, name, reading.filesystems[role])


def _disk(role: str, name: str, disk: Filesystem) -> SurveyCheck:
    if disk.problem:
        state = State.OK if role == "models" else State.UNKNOWN
        step = "set models_dir in hosts.toml" if role == "models" else ""
        return SurveyCheck(name=name, state=state, summary=f"{disk.path}: {disk.problem}", next_step=step)
    summary = f"{disk.path}: {disk.free_bytes / GIB:,.1f} of {disk.total_bytes / GIB:,.1f} GiB free"
    if role == "shm":
        is_short = disk.free_bytes < SHM_BYTES
        step = _remedy("host-memory/shared-memory-too-small") if is_short else ""
        return SurveyCheck(name=name, state=State.WARNING if is_short else State.OK, summary=summary, next_step=step)
    if disk.free_bytes < GIB:
        return SurveyCheck(name=name, state=State.CRITICAL, summary=summary, next_step=_remedy("environment/disk-full"))
    state = State.WARNING if disk.free_percent < _DISK_PERCENT else State.OK
    return SurveyCheck(name=name, state=state, summary=summary)


def _memory(reading: SurveyReading) -> SurveyCheck:
    memory = reading.memory
    if not memory.total_bytes:
        return SurveyCheck(name="memory", state=State.UNKNOWN, summary="/proc/meminfo can't be read")
    is_short = 100 * memory.available_bytes < _MEMORY_PERCENT * memory.total_bytes
    summary = f"{memory.available_bytes / GIB:,.1f} of {memory.total_bytes / GIB:,.1f} GiB of memory available"
    return SurveyCheck(name="memory", state=State.WARNING if is_short else State.OK, summary=summary)


def _clock_check(clock: Clock) -> SurveyCheck:
    is_off = abs(clock.offset_s) - clock.uncertainty_s > CLOCK_S
    direction = "ahead of" if clock.offset_s > 0 else "behind"
    summary = f"clock {abs(clock.offset_s):.2f} s {direction} this machine's, give or take {clock.uncertainty_s:.2f} s"
    step = "timedatectl on both: which of them is synchronised?" if is_off else ""
    return SurveyCheck(name="clock", state=State.WARNING if is_off else State.OK, summary=summary, next_step=step)


def _journal(reading: SurveyReading) -> SurveyCheck:
    if reading.journal["var"]:
        return SurveyCheck(name="journal", state=State.OK, summary="the journal is persistent (/var/log/journal)")
    if reading.journal["run"]:
        summary = "the journal is volatile (/run/log/journal): a reboot loses what an engine said before it"
        step = "mkdir /var/log/journal, then systemctl restart systemd-journald"
        return SurveyCheck(name="journal", state=State.WARNING, summary=summary, next_step=step)
    return SurveyCheck(
        name="journal", state=State.UNKNOWN, summary="no journal in /var/log/journal or /run/log/journal"
    )


def _engine(reading: SurveyReading) -> SurveyCheck:
    versions = {unit.version.version for unit in reading.units if unit.version and unit.version.version}
    if not versions and reading.engine.version:
        versions = {reading.engine.version}
    if versions:
        return SurveyCheck(name="engine", state=State.OK, summary=f"vLLM {', '.join(sorted(versions))}")
    return SurveyCheck(name="engine", state=State.OK, summary=f"vLLM version not known: {reading.engine.problem}")


def _rights() -> SurveyCheck:
    summary = "sudo -n was refused: processes of other users and kernel lines may be missing above"
    return SurveyCheck(
        name="rights", state=State.UNKNOWN, summary=summary, next_step="opslib sudoers HOST prints what is needed"
    )


def _borrowed(check: SurveyCheck) -> SurveyCheck:
    is_journal = check.name == "journal"
    summary = (
        "the rehearsal host's journal lives as long as it does" if is_journal else f"{check.summary} (this machine's)"
    )
    return check.model_copy(update={"state": State.OK, "summary": summary, "next_step": ""})


def _answer(reading: SurveyReading, name: str) -> CommandAnswer:
    return reading.answers.get(name, CommandAnswer())


def _systemd_version(reading: SurveyReading) -> str:
    words = _answer(reading, "systemd").text.split()
    return words[1] if len(words) > 1 else ""


def _remedy(cause: str) -> str:
    remedies = cause_entry(cause).remedies if not cause.startswith("Xid") else ()
    return remedies[0].text if remedies else "see the NVIDIA Xid catalogue"
