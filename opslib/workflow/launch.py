"""Start a unit and watch it until it answers, crashes, fails or the time is up."""

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from opslib.domain.facts.gpu import gpu_memory_command, parse_gpu_memory
from opslib.domain.facts.journal import entry_of, journal_command, newest_entry_command, parse_journal_entry
from opslib.domain.facts.systemd import UnitStatus, parse_unit_show, show_unit_command, unit_name
from opslib.domain.host import CommandResult, Host, LineStream
from opslib.domain.launch import (
    DeadlineReached,
    GpuSeen,
    HealthSeen,
    JournalSeen,
    LaunchChange,
    LaunchEvent,
    LaunchStatus,
    LaunchTracker,
    LinkLost,
    TickSeen,
    UnitSeen,
)
from opslib.domain.states import Value
from opslib.errors import CouldNotFindOut, HostUnreachable, OpslibError, Refused, UnexpectedAnswer
from opslib.workflow.facts import journal_sudo

_SILENCE_S = 8.0  # four ticks: then the link counts as lost
_RECONNECT_S = 2.0
_STOP_TIMEOUT_S = 300.0


class Start(Value):
    """What was true just before a start was asked for: where the journal stood, and the unit."""

    unit: str
    asked_at: datetime
    cursor: str
    before: UnitStatus
    verb: str  # "start" | "restart"


class LaunchUpdate(Value):
    """One event of a watch, what it changed, and all that is known after it."""

    event: LaunchEvent
    changes: tuple[LaunchChange, ...]
    status: LaunchStatus


def utc_now() -> datetime:
    """The time of this machine, aware UTC."""
    return datetime.now(UTC)


def show_unit(host: Host, unit: str) -> UnitStatus:
    """What systemd says about the unit now; raises UnexpectedAnswer where it says nothing."""
    result = host.run(show_unit_command(unit))
    if not result.is_success:
        raise UnexpectedAnswer(f"systemctl show {unit}: {result.error_text}", host=host.settings.alias)
    return parse_unit_show(result.text)


def journal_cursor(host: Host) -> str:
    """The cursor of the newest journal entry, "" where there is none or it may not be read."""
    result = host.run(newest_entry_command(), sudo=journal_sudo(host))
    lines = [line for line in result.stdout.splitlines() if line.startswith(b"{")]
    return parse_journal_entry(lines[-1]).cursor if lines else ""


def start_unit(host: Host, unit: str, *, clock: Callable[[], datetime] = utc_now) -> Start:
    """Starts the unit (restarts one that runs) without waiting, having noted where the journal stands.

    Raises Refused where there is no such unit, or where systemd refuses the job (its words are quoted).
    """
    start = note_start(host, unit, clock=clock)
    if not start.before.is_installed:
        raise Refused(f"systemd knows no unit {unit_name(unit)}", host=host.settings.alias, hint="install it first")
    if start.before.active_state == "failed":
        _systemctl(host, "reset-failed", unit)  # else the start limit of earlier failures would still count
    _accepted(host, _systemctl(host, "--no-block", start.verb, unit))
    return start


def note_start(host: Host, unit: str, *, clock: Callable[[], datetime] = utc_now) -> Start:
    """What is true now, for a start that somebody else asks for."""
    before = show_unit(host, unit)
    verb = "restart" if before.active_state in {"active", "activating", "reloading"} else "start"
    return Start(unit=unit, asked_at=clock(), cursor=journal_cursor(host), before=before, verb=verb)


def stop_unit(host: Host, unit: str, *, timeout_s: float = _STOP_TIMEOUT_S) -> UnitStatus:
    """Stops the unit, waits for it, and asks again; raises Refused with systemd's words."""
    _accepted(host, _systemctl(host, "stop", unit, timeout_s=timeout_s))
    return show_unit(host, unit)


def _systemctl(host: Host, *words: str, timeout_s: float = 30.0) -> CommandResult:
    *options, unit = words
    return host.run(("systemctl", *options, "--", unit_name(unit)), sudo=True, timeout_s=timeout_s)


def _accepted(host: Host, result: CommandResult) -> None:
    if not result.is_success:
        raise Refused(f"{' '.join(result.argv)}: {result.error_text}", host=host.settings.alias)


def watch_launch(
    host: Host,
    unit: str,
    *,
    port: int,
    timeout_s: float,
    start: Start | None = None,
    health_path: str = "/health",
    has_gpus: bool = True,
    stall_s: float = 900.0,
    clock: Callable[[], datetime] = utc_now,
) -> Iterator[LaunchUpdate]:
    """Everything that is seen of a launch, until ready, crash, failure or timeout; the last update is final.

    Survives a lost link: it reports *unreachable*, connects again and goes on reading at the journal's cursor. Without
    `start` it watches the unit as it runs. Closing the generator ends the program on the host. Raises PrivilegeRefused
    and other refusals; an unreachable host is no error until the time is up.
    """
    began_at = start.asked_at if start else clock()
    tracker = LaunchTracker(began_at, before=start.before if start else None, stall_s=stall_s)
    cursor = start.cursor if start else journal_cursor(host)
    deadline = began_at + timedelta(seconds=timeout_s)
    while not tracker.status.state.is_final:
        arguments = watch_arguments(
            unit, port=port, health_path=health_path, after_cursor=tracker.status.cursor or cursor, has_gpus=has_gpus
        )
        for event in _events(host, arguments, clock=clock, deadline=deadline):
            changes = tracker.feed(event)
            yield LaunchUpdate(event=event, changes=changes, status=tracker.status)
            if tracker.status.state.is_final:
                return
        if clock() >= deadline:
            event = DeadlineReached(at=clock())
            changes = tracker.feed(event)
            yield LaunchUpdate(event=event, changes=changes, status=tracker.status)


def watch_arguments(
    unit: str, *, port: int, health_path: str, after_cursor: str, has_gpus: bool, interval_s: float = 0.5
) -> dict[str, object]:
    """What the program `watch` on the host is told: argument vectors of the facts, port, path, pace."""
    return {
        "journal": list(journal_command(unit, after_cursor=after_cursor or None, follow=True)),
        "show": list(show_unit_command(unit)),
        "gpu": list(gpu_memory_command()) if has_gpus else None,
        "port": port,
        "health_path": health_path,
        "interval_s": interval_s,
    }


def _events(
    host: Host, arguments: dict[str, object], *, clock: Callable[[], datetime], deadline: datetime
) -> Iterator[LaunchEvent]:
    """The events of one connection; ends with LinkLost, or silently at the deadline."""
    try:
        with host.stream_program("watch", arguments, sudo=journal_sudo(host)) as stream:
            yield from _read_events(stream, clock=clock, deadline=deadline)
    except HostUnreachable as error:
        yield LinkLost(at=clock(), reason=error.message)
    pause(min(_RECONNECT_S, max(0.0, (deadline - clock()).total_seconds())))


def _read_events(stream: LineStream, *, clock: Callable[[], datetime], deadline: datetime) -> Iterator[LaunchEvent]:
    lines: queue.Queue[bytes | OpslibError | None] = queue.Queue()
    threading.Thread(target=_pump, args=(stream, lines), name="opslib-watch", daemon=True).start()
    while (left_s := (deadline - clock()).total_seconds()) > 0:
        try:
            line = lines.get(timeout=min(left_s, _SILENCE_S))
        except queue.Empty:
            if left_s > _SILENCE_S:
                yield LinkLost(at=clock(), reason=f"nothing heard for {_SILENCE_S:.0f} s")
                return
            continue
        if line is None:
            yield LinkLost(at=clock(), reason="the program on the host ended")
            return
        if isinstance(line, HostUnreachable):
            yield LinkLost(at=clock(), reason=line.message)
            return
        if isinstance(line, OpslibError):
            raise line
        if event := parse_watch_line(line):
            yield event


def _pump(stream: LineStream, lines: "queue.Queue[bytes | OpslibError | None]") -> None:
    """Reads in a thread of its own, so that silence is noticed."""
    try:
        for line in stream:
            lines.put(line)
    except OpslibError as error:
        lines.put(error)
    except (OSError, ValueError):  # closed under the reader
        pass
    lines.put(None)


def pause(seconds: float) -> None:
    """Waits."""
    threading.Event().wait(seconds)


def parse_watch_line(line: bytes) -> LaunchEvent | None:
    """The event that a line of the program `watch` tells; None where it tells nothing that can be read."""
    with suppress(ValueError, KeyError, TypeError, CouldNotFindOut):
        fields = json.loads(line)
        at = datetime.fromtimestamp(fields["at"], tz=UTC)
        match fields["type"]:
            case "journal":
                return JournalSeen(at=at, entry=entry_of(fields["entry"]))
            case "health":
                return HealthSeen(at=at, status_code=fields["status_code"])
            case "unit" if fields["text"]:
                return UnitSeen(at=at, status=parse_unit_show(fields["text"]))
            case "gpu" if fields["text"]:
                return GpuSeen(at=at, gpus=parse_gpu_memory(fields["text"]))
            case "tick":
                return TickSeen(at=at)
    return None


def last_status(updates: Iterable[LaunchUpdate]) -> LaunchStatus:
    """Runs a watch to its end and says how it ended; raises CouldNotFindOut where nothing was seen."""
    status = next((update.status for update in deque(updates, maxlen=1)), None)
    if status is None:
        raise CouldNotFindOut("the watch ended before anything was seen")
    return status
