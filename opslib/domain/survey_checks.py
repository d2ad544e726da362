"""What a survey's reading comes to: every topic judged, the worst of them the host's state."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.ports import Listener, parse_listeners
from opslib.domain.states import State, worst
from opslib.domain.survey import Clock, EngineUnit, Filesystem, HostSurvey, SurveyCheck
from opslib.domain.survey_gpus import first_remedy, headroom, judge_gpus, judge_kernel
from opslib.domain.survey_reading import SurveyReading
from opslib.domain.survey_units import judge_unit
from opslib.errors import UnexpectedAnswer

GIB = 2**30
CLOCK_S = 2.0  # farther apart, times of host and controller can't be laid side by side
SHM_BYTES = GIB
_DISK_PERCENT = 5.0
_MEMORY_PERCENT = 5.0
# A rehearsal host has these from the machine that it runs on.
_BORROWED = ("disk models", "disk /", "shared memory", "memory", "journal")


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
    gpus, holders, gpu_check = judge_gpus(reading)
    clock = measure_clock(reading, received_at=received_at, duration_s=duration_s)
    checks = [
        *_unit_checks(reading, units),
        gpu_check,
        judge_kernel(reading, has_gpus=bool(gpus)),
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
        headroom_bytes=headroom(gpus),
    )


def measure_clock(reading: SurveyReading, *, received_at: datetime, duration_s: float) -> Clock:
    """How far the host's clock is ahead, the round trip taken to be as long there as back (as NTP does, RFC 5905)."""
    sent_at = received_at - timedelta(seconds=duration_s)
    there = (reading.began_at - sent_at).total_seconds()
    back = (reading.ended_at - received_at).total_seconds()
    busy_s = (reading.ended_at - reading.began_at).total_seconds()
    uncertainty_s = max(0.0, duration_s - busy_s) / 2
    return Clock(offset_s=round((there + back) / 2, 3), uncertainty_s=round(uncertainty_s, 3))


def clock_between(sent_at: datetime, there_at: datetime, received_at: datetime) -> Clock:
    """The same from one moment there, somewhere between asking and hearing (which holds a new connection as well).

    >>> from datetime import UTC
    >>> asked, heard = (datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC) for second in (0, 2))
    >>> clock_between(asked, datetime(2026, 1, 1, 12, 3, tzinfo=UTC), heard)
    Clock(offset_s=179.0, uncertainty_s=1.0)
    """
    half_s = (received_at - sent_at).total_seconds() / 2
    offset_s = (there_at - sent_at).total_seconds() - half_s
    return Clock(offset_s=round(offset_s, 3), uncertainty_s=round(half_s, 3))


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
        return parse_listeners(reading.answer("listeners").text)
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


def _disks(reading: SurveyReading) -> Iterator[SurveyCheck]:
    for role, name in (("models", "disk models"), ("root", "disk /"), ("shm", "shared memory")):
        yield _disk(role, name, reading.filesystems[role])


def _disk(role: str, name: str, disk: Filesystem) -> SurveyCheck:
    if disk.problem:
        is_absent = role == "models" and "does not answer" not in disk.problem  # nothing was downloaded there yet
        state = State.OK if is_absent else State.UNKNOWN
        step = "set models_dir in hosts.toml" if is_absent else "see `mount`, and the file server"
        return SurveyCheck(name=name, state=state, summary=f"{disk.path}: {disk.problem}", next_step=step)
    summary = f"{disk.path}: {disk.free_bytes / GIB:,.1f} of {disk.total_bytes / GIB:,.1f} GiB free"
    if role == "shm":
        is_short = disk.free_bytes < SHM_BYTES
        step = first_remedy("host-memory/shared-memory-too-small") if is_short else ""
        return SurveyCheck(name=name, state=State.WARNING if is_short else State.OK, summary=summary, next_step=step)
    if disk.free_bytes < GIB:
        return SurveyCheck(
            name=name, state=State.CRITICAL, summary=summary, next_step=first_remedy("environment/disk-full")
        )
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
        name="rights",
        state=State.UNKNOWN,
        summary=summary,
        next_step='allow `sudo -n`, or write sudo = "listed" in hosts.toml (`opslib sudoers HOST` prints the list)',
    )


def _borrowed(check: SurveyCheck) -> SurveyCheck:
    is_journal = check.name == "journal"
    summary = (
        "the rehearsal host's journal lives as long as it does" if is_journal else f"{check.summary} (this machine's)"
    )
    return check.model_copy(update={"state": State.OK, "summary": summary, "next_step": ""})


def _systemd_version(reading: SurveyReading) -> str:
    words = reading.answer("systemd").text.split()
    return words[1] if len(words) > 1 else ""
