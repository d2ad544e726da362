"""Gather what a failed start left behind, before anything is changed, and say why it failed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from opslib.domain.diagnosis import Diagnosis, diagnose
from opslib.domain.diagnosis_catalogue import cause_entry
from opslib.domain.diagnosis_quote import quote_decisive
from opslib.domain.facts.gpu import (
    Gpu,
    GpuProcess,
    gpu_memory_command,
    gpu_processes_command,
    parse_gpu_memory,
    parse_gpu_processes,
)
from opslib.domain.facts.journal import JournalEntry, journal_command, kernel_command
from opslib.domain.facts.ports import Listener, listeners_command, parse_listeners
from opslib.domain.facts.processes import descends_from, parse_process_parents, process_parents_command
from opslib.domain.facts.systemd import UnitStatus, parse_unit_show, show_unit_command, unit_name
from opslib.domain.host import Host
from opslib.domain.journal_text import parse_input
from opslib.domain.snapshot import Snapshot
from opslib.domain.states import Value
from opslib.domain.survey import HostSurvey
from opslib.errors import CommandTimedOut, Refused, UnexpectedAnswer
from opslib.workflow.gathering import Asked, Gatherer
from opslib.workflow.launch import pause, utc_now
from opslib.workflow.running import running_argv
from opslib.workflow.snapshot import take_snapshot
from opslib.workflow.survey import survey_host

_MARGIN = timedelta(seconds=5)
_WRITTEN_S = 0.5  # journald writes the last lines a little later than systemd tells the end
_JOURNAL_TIMEOUT_S = 120.0
_NEWEST = 5000  # entries of a unit whose last start is older than a day
_PORT_IN_USE = "configuration/port-in-use"
_FREE_BELOW, _HELD = "gpu-memory/free-below-budget", "gpu-memory/held-by-another"


class Evidence(Value):
    """All that was gathered about one start; `missing` says what could not be had, and why."""

    unit: str
    invocation_id: str
    gathered_at: datetime
    journal: tuple[JournalEntry, ...] = ()
    journal_text: str = ""  # as the host gave it, for the record
    kernel: tuple[JournalEntry, ...] = ()
    status: UnitStatus | None = None
    unit_text: str = ""  # `systemctl cat`: the file with its drop-ins
    gpus: tuple[Gpu, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    foreign_gpu_processes: tuple[GpuProcess, ...] = ()  # those that the unit's running process did not start
    listeners: tuple[Listener, ...] = ()
    survey: HostSurvey | None = None  # disks, main memory, versions
    running_argv: tuple[str, ...] = ()  # of the unit's process of now, where one runs
    snapshot: Snapshot | None = None  # what the unit would be started with now
    asked: tuple[Asked, ...] = ()
    missing: tuple[str, ...] = ()


class Investigation(Value):
    """The evidence, and the verdict that it supports."""

    evidence: Evidence
    diagnosis: Diagnosis


def gather_evidence(
    host: Host,
    unit: str,
    invocation_id: str | None,
    *,
    port: int | None = None,
    has_gpus: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> Evidence:
    """Everything about one start of the unit: its journal whole, systemd's and the kernel's lines, GPUs, port, unit.

    Without an invocation id, the unit's journal of the last day, or its newest entries. Raises HostUnreachable only.
    """
    gatherer = Gatherer(host, clock)
    journal_text, journal = _journal(gatherer, unit, invocation_id)
    invocation_id = invocation_id or failed_invocation(journal)
    if not journal and not any(said.startswith("journal") for said in gatherer.missing):
        gatherer.missing.append("journal: no entries (rotated away, or the login may not read them)")
    status = gatherer.read("unit", parse_unit_show, gatherer.ask("unit", show_unit_command(unit), sudo=False), None)
    gpu_processes = _gpu_processes(gatherer) if has_gpus else ()
    survey = _survey(gatherer, unit)
    return Evidence(
        unit=unit,
        invocation_id=invocation_id or "",
        gathered_at=clock(),
        journal=journal,
        journal_text=journal_text,
        kernel=_kernel_lines(gatherer, _of_start(journal, invocation_id)),
        status=status,
        unit_text=gatherer.ask("unit file", ("systemctl", "cat", "--", unit_name(unit)), sudo=False),
        gpus=_gpus(gatherer) if has_gpus else (),
        gpu_processes=gpu_processes,
        foreign_gpu_processes=_foreign(gatherer, gpu_processes, status),
        listeners=_listeners(gatherer, port),
        survey=survey,
        running_argv=_running(gatherer, unit),
        snapshot=take_snapshot(host, unit, survey=survey, has_gpus=has_gpus, clock=clock),
        asked=tuple(gatherer.asked),
        missing=tuple(gatherer.missing),
    )


def _journal(gatherer: Gatherer, unit: str, invocation_id: str | None) -> tuple[str, tuple[JournalEntry, ...]]:
    """The start's entries of whatever boot; without an id those of the last day, else the unit's newest ones."""
    day = gatherer.clock() - timedelta(days=1)
    asked: list[dict[str, Any]] = (
        [{"invocation_id": invocation_id}] if invocation_id else [{"since": day}, {"lines": _NEWEST}]
    )
    for options in asked:
        argv = journal_command(unit, **options)
        text = gatherer.ask("journal", argv, sudo=gatherer.journal_sudo, timeout_s=_JOURNAL_TIMEOUT_S)
        if journal := parse_input(text, "journal") if text else ():
            return text, journal
    return "", ()


def failed_invocation(journal: tuple[JournalEntry, ...]) -> str:
    """The last start in a journal that failed, "" where none did or none has an id."""
    failed = [start for start in diagnose(journal).invocations if start.ending == "failed" and start.invocation_id]
    return failed[-1].invocation_id if failed else ""


def _of_start(journal: tuple[JournalEntry, ...], invocation_id: str | None) -> tuple[JournalEntry, ...]:
    """The entries of one start; all where none bears its id."""
    own = tuple(entry for entry in journal if entry.invocation_id == invocation_id)
    return own or journal


def _survey(gatherer: Gatherer, unit: str) -> HostSurvey:
    """Disks, main memory and versions, in one round trip."""
    asked_at, survey = gatherer.clock(), survey_host(gatherer.host, (unit,), clock=gatherer.clock)
    problem = "" if survey.is_reached else survey.summary
    gatherer.asked.append(Asked(what="survey", words="opslib survey", asked_at=asked_at, problem=problem))
    return survey


def _running(gatherer: Gatherer, unit: str) -> tuple[str, ...]:
    """What the unit's process of now was started with; none where none runs, which is no gap."""
    asked_at, problem, argv = gatherer.clock(), "", tuple[str, ...]()
    try:
        argv = running_argv(gatherer.host, unit)
    except (Refused, CommandTimedOut, UnexpectedAnswer) as error:
        problem = error.message
    gatherer.asked.append(Asked(what="running flags", words="/proc/PID/cmdline", asked_at=asked_at, problem=problem))
    return argv


def _listeners(gatherer: Gatherer, port: int | None) -> tuple[Listener, ...]:
    text = gatherer.ask("port", listeners_command(port), sudo=True) if port else ""
    return gatherer.read("port", parse_listeners, text, ())


def _gpus(gatherer: Gatherer) -> tuple[Gpu, ...]:
    text = gatherer.ask("GPU memory", gpu_memory_command(), sudo=False)
    return gatherer.read("GPU memory", parse_gpu_memory, text, ())


def _gpu_processes(gatherer: Gatherer) -> tuple[GpuProcess, ...]:
    text = gatherer.ask("GPU processes", gpu_processes_command(), sudo=False)
    return gatherer.read("GPU processes", parse_gpu_processes, text, ())


def _foreign(
    gatherer: Gatherer, processes: tuple[GpuProcess, ...], status: UnitStatus | None
) -> tuple[GpuProcess, ...]:
    """The GPU processes that are no descendants of the unit's main process (it may have been restarted meanwhile)."""
    if not processes or status is None:
        return ()
    text = gatherer.ask("processes", process_parents_command(), sudo=False)
    parents = gatherer.read("processes", parse_process_parents, text, dict[int, int]())
    if not parents:
        return ()
    main_pid = status.main_pid or -1
    return tuple(process for process in processes if not descends_from(process.pid, main_pid, parents))


def _kernel_lines(gatherer: Gatherer, journal: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
    """Kernel messages of the start's time span: they carry neither unit nor invocation."""
    times = [entry.realtime_at for entry in journal if entry.realtime_at]
    if not times:
        return ()
    argv = kernel_command(min(times) - _MARGIN, max(times) + _MARGIN)
    text = gatherer.ask("kernel messages", argv, sudo=gatherer.journal_sudo)
    return parse_input(text, "journal") if text else ()


def investigate(
    host: Host,
    unit: str,
    invocation_id: str | None,
    *,
    port: int | None = None,
    has_gpus: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> Investigation:
    """Why this start of the unit failed, with the evidence that was gathered for it."""
    evidence = gather_evidence(host, unit, invocation_id, port=port, has_gpus=has_gpus, clock=clock)
    return Investigation(evidence=evidence, diagnosis=judge(evidence, port=port))


def judge(evidence: Evidence, *, port: int | None = None) -> Diagnosis:
    """The verdict on evidence that was gathered before; pure.

    Quoted lines count in the journal with the kernel's lines sorted in by time.
    """
    entries = merge_by_time(evidence.journal, evidence.kernel)
    status = evidence.status
    if status is not None and not status.is_installed and not evidence.journal:
        return Diagnosis(cause="unknown", confidence="low", summary=_no_such_unit(evidence.unit))
    is_same = status is not None and status.invocation_id in {"", evidence.invocation_id}
    diagnosis = diagnose(entries, status=status if is_same else None)
    if diagnosis.cause == _PORT_IN_USE:
        return _with(diagnosis, diagnosis.cause, _holder(evidence, port))
    if diagnosis.cause in {_FREE_BELOW, _HELD} and evidence.foreign_gpu_processes:
        return _with(
            diagnosis, _HELD, " ".join(_holds(process, evidence) for process in evidence.foreign_gpu_processes)
        )
    return diagnosis.model_copy(update={"summary": f"{diagnosis.summary} {quote_decisive(diagnosis)}".rstrip()})


def _no_such_unit(unit: str) -> str:
    """Where to look for the right name, as nothing can be said about this one."""
    way = "`opslib survey HOST` lists the engine units, `systemctl list-units --all` every one"
    return f"systemd knows no unit {unit_name(unit)}, and the journal has no line of it. Next: check the name; {way}."


def _with(diagnosis: Diagnosis, cause: str, who: str) -> Diagnosis:
    """The verdict with the one named who stands in the way."""
    entry = cause_entry(cause)
    first = diagnosis.summary if cause == diagnosis.cause else f"{entry.meaning} {diagnosis.summary}"
    changed = {"cause": cause, "summary": f"{first} {who}".strip(), "remedies": entry.remedies_for({})}
    return diagnosis.model_copy(update=changed)


def _holds(process: GpuProcess, evidence: Evidence) -> str:
    index = next((gpu.index for gpu in evidence.gpus if gpu.uuid == process.gpu_uuid), None)
    where = "a GPU" if index is None else f"GPU {index}"
    held = "memory" if process.memory_used_bytes is None else f"{process.memory_used_bytes / 2**30:.1f} GiB"
    return f"{process.name} holds {held} of {where}. Its process id is {process.pid}."


def _holder(evidence: Evidence, port: int | None) -> str:
    """Who listens now, in one sentence."""
    known = [listener for listener in evidence.listeners if listener.pid is not None]
    if known:
        return " ".join(f"Port {at.port} is held by {at.process_name} (pid {at.pid}, on {at.address})." for at in known)
    if evidence.listeners:
        return f"Port {port} has a listener whose process this login may not see."
    return f"Nobody listens on port {port} now." if port else ""


def merge_by_time(journal: tuple[JournalEntry, ...], kernel: tuple[JournalEntry, ...]) -> tuple[JournalEntry, ...]:
    """Both in one order, numbered anew; an entry without a time keeps its place."""
    if not kernel:
        return journal
    merged: list[JournalEntry] = []
    waiting = list(kernel)
    for entry in journal:
        while waiting and _is_before(waiting[0], entry):
            merged.append(waiting.pop(0))
        merged.append(entry)
    merged += waiting
    return tuple(entry.model_copy(update={"line": line}) for line, entry in enumerate(merged))


def _is_before(kernel: JournalEntry, entry: JournalEntry) -> bool:
    return kernel.realtime_at is not None and entry.realtime_at is not None and kernel.realtime_at < entry.realtime_at


def wait_until_ended(
    host: Host,
    unit: str,
    invocation_id: str,
    *,
    timeout_s: float = 30.0,
    clock: Callable[[], datetime] = utc_now,
) -> bool:
    """Waits until this start's main process is gone and its journal is whole; False where it still runs."""
    deadline = clock() + timedelta(seconds=timeout_s)
    while clock() < deadline:
        status = parse_unit_show(host.run(show_unit_command(unit)).text)
        if status.invocation_id != invocation_id or status.main_pid == 0:
            pause(_WRITTEN_S)
            return True
        pause(0.3)
    return False
