"""Start a unit and watch it until it answers, crashes, fails or the time is up."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from opslib.domain.facts.journal import (
    entry_at_command,
    newest_entry_command,
    parse_journal_entry,
)
from opslib.domain.facts.restart_budget import RestartBudget, parse_restart_budget, show_restart_command
from opslib.domain.facts.systemd import UnitStatus, parse_unit_show, show_unit_command, unit_name
from opslib.domain.host import CommandResult, Host
from opslib.domain.launch import LaunchTracker
from opslib.domain.launch_eta import Durations
from opslib.domain.launch_events import (
    DeadlineReached,
    JournalGap,
    LaunchEvent,
    LinkLost,
)
from opslib.domain.launch_record import LaunchUpdate, WatchHead
from opslib.domain.launch_status import FINAL, LaunchState, LaunchStatus
from opslib.domain.states import Value
from opslib.errors import CouldNotFindOut, HostUnreachable, PrivilegeRefused, Refused, UnexpectedAnswer
from opslib.workflow.facts import journal_sudo
from opslib.workflow.watch_stream import read_events, watch_arguments

_RECONNECT_S = 2.0
_STOP_TIMEOUT_S = 300.0
_YOUNG = timedelta(hours=2)  # a start that began before is watched from now on
_LAST_WORD = timedelta(seconds=1)  # journald hands on what it stored a quarter of a second later
_NEVER = datetime.max.replace(tzinfo=UTC)


class Start(Value):
    """What was true just before a start was asked for: where the journal stood, and the unit."""

    unit: str
    asked_at: datetime
    cursor: str
    before: UnitStatus
    verb: str  # "start" | "restart"


def utc_now() -> datetime:
    """The time of this machine, aware UTC."""
    return datetime.now(UTC)


def show_unit(host: Host, unit: str) -> UnitStatus:
    """What systemd says about the unit now; raises UnexpectedAnswer where it says nothing."""
    result = host.run(show_unit_command(unit))
    if not result.is_success:
        raise UnexpectedAnswer(f"systemctl show {unit}: {result.error_text}", host=host.settings.alias)
    return parse_unit_show(result.text)


def journal_cursor(host: Host, unit: str) -> str:
    """The cursor of the unit's newest journal entry, "" where there is none or it may not be read."""
    result = host.run(newest_entry_command(unit), sudo=journal_sudo(host))
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
    return Start(unit=unit, asked_at=clock(), cursor=journal_cursor(host, unit), before=before, verb=verb)


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
    timeout_s: float | None,
    start: Start | None = None,
    health_path: str = "/health",
    has_gpus: bool = True,
    stall_s: float = 900.0,
    ends_at: Collection[LaunchState] = FINAL,
    earlier: Sequence[Durations] = (),
    on_begin: Callable[[WatchHead], None] = lambda _: None,
    clock: Callable[[], datetime] = utc_now,
) -> Iterator[LaunchUpdate]:
    """Everything that is seen of a launch, until ready, crash, failure or timeout; the last update is final.

    Survives a lost link: it reports *unreachable*, connects again and goes on reading at the journal's cursor. Without
    `start` it watches the unit as it runs; without a crash in `ends_at` it follows the starts that systemd makes.
    `earlier` launches give the estimate; `on_begin` is told what a replay of the events needs. Closing the generator
    ends the program on the host. Raises PrivilegeRefused and other refusals; an unreachable host is no error until the
    time is up.
    """
    since = None if start else began_lately(host, unit, now=clock())
    began_at = start.asked_at if start else since.exec_main_start_at if since else clock()
    assert began_at is not None
    before = start.before if start else None
    budget = None if LaunchState.CRASHED in ends_at else gather_restart_budget(host, unit)
    head = WatchHead(
        host=host.settings.alias,
        unit=unit,
        began_at=began_at,
        before=before,
        present=since.invocation_id if since else "",
        stall_s=stall_s,
        ends_at=tuple(sorted(ends_at)),
        earlier=tuple(dict(durations) for durations in earlier),
        budget=budget,
    )
    on_begin(head)
    tracker = head.tracker()
    cursor = start.cursor if start else "" if since else journal_cursor(host, unit)
    deadline = began_at + timedelta(seconds=timeout_s) if timeout_s is not None else _NEVER
    while not tracker.is_over:
        if gap := find_journal_gap(host, unit, tracker.status.cursor, at=clock()):
            yield from _feed(tracker, (gap,), clock=clock)
        arguments = watch_arguments(
            unit,
            port=port,
            health_path=health_path,
            after_cursor=tracker.status.cursor or cursor,
            since=began_at if since and not tracker.status.cursor else None,
            has_gpus=has_gpus,
        )
        yield from _feed(tracker, _events(host, arguments, clock=clock, deadline=deadline), clock=clock)
        if clock() >= deadline and not tracker.is_over:
            yield from _feed(tracker, (DeadlineReached(at=clock()),), clock=clock)


def _feed(
    tracker: LaunchTracker, events: Iterable[LaunchEvent], *, clock: Callable[[], datetime]
) -> Iterator[LaunchUpdate]:
    """The events as updates, until it is over and, of a crash, the journal's last word was heard or is late."""
    until = None
    for event in events:
        changes = tracker.feed(event)
        yield LaunchUpdate(event=event, changes=changes, status=tracker.status)
        if tracker.is_over:
            until = until or clock() + _LAST_WORD
            if not tracker.wants_last_word or clock() >= until:
                return


def began_lately(host: Host, unit: str, *, now: datetime) -> UnitStatus | None:
    """The unit, where its present start is young enough that the journal is read from its beginning."""
    status = show_unit(host, unit)
    began_at = status.exec_main_start_at
    if not status.main_pid or not status.invocation_id or began_at is None:
        return None
    return status if now - began_at < _YOUNG else None


def gather_restart_budget(host: Host, unit: str) -> RestartBudget:
    """How often systemd starts the unit again before it gives up."""
    result = host.run(show_restart_command(unit))
    return parse_restart_budget(result.text)


def find_journal_gap(host: Host, unit: str, cursor: str, *, at: datetime) -> JournalGap | None:
    """Whether the entry that was read last is still in the journal; None where it is, or nothing was read yet.

    journalctl seeks to the nearest entry where that one was rotated away (journalctl(1), `--cursor=`), so that what
    came after it may be missing as well.
    """
    if not cursor:
        return None
    with suppress(HostUnreachable, UnexpectedAnswer):
        result = host.run(entry_at_command(unit, cursor), sudo=journal_sudo(host))
        found = next((line for line in result.stdout.splitlines() if line.startswith(b"{")), None)
        if result.is_success and (found is None or parse_journal_entry(found).cursor != cursor):
            return JournalGap(at=at, text="the journal is incomplete: entries were rotated away while it was not read")
    return None


def watch_sudo(host: Host) -> bool:
    """Whether the watch runs with sudo: where it may, to find the engine's API key and whose the port is.

    Without it an engine that wants a key can't be asked for an answer, and says so; all else is seen.
    """
    if host.settings.sudo is not True:  # "listed" runs no program with sudo
        return journal_sudo(host)
    try:
        return host.run(("true",), sudo=True).is_success or journal_sudo(host)
    except PrivilegeRefused:
        return journal_sudo(host)


def _events(
    host: Host, arguments: dict[str, object], *, clock: Callable[[], datetime], deadline: datetime
) -> Iterator[LaunchEvent]:
    """The events of one connection; ends with LinkLost, or silently at the deadline."""
    try:
        with host.stream_program("watch", arguments, sudo=watch_sudo(host)) as stream:
            yield from read_events(stream, clock=clock, deadline=deadline)
    except HostUnreachable as error:
        yield LinkLost(at=clock(), reason=error.message)
    pause(min(_RECONNECT_S, max(0.0, (deadline - clock()).total_seconds())))


def pause(seconds: float) -> None:
    """Waits."""
    threading.Event().wait(seconds)


def last_status(updates: Iterable[LaunchUpdate]) -> LaunchStatus:
    """Runs a watch to its end and says how it ended; raises CouldNotFindOut where nothing was seen."""
    status = next((update.status for update in deque(updates, maxlen=1)), None)
    if status is None:
        raise CouldNotFindOut("the watch ended before anything was seen")
    return status
