"""One host's turn in a rollout: asked, drained, its own run, its gates; its service back where nothing was changed."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from opslib.app.closing import close_killed
from opslib.app.rollout_running import PATIENCE_S, Rollout
from opslib.app.rollout_worker import Worker, read_worker_record, record_of, refusal_in, start_worker
from opslib.domain.host import Host
from opslib.domain.lock import LockHolder
from opslib.domain.rollout import HostStep, UnitFound
from opslib.domain.rollout_judge import judge_gates, step_of
from opslib.domain.states import State
from opslib.errors import HostUnreachable, LockHeld, OpslibError, Refused
from opslib.records.operator import login_name
from opslib.records.rollout import PARAMETERS_FILE
from opslib.records.tail import EventTail
from opslib.workflow import lifecycle
from opslib.workflow.launch import start_unit
from opslib.workflow.lock import hold_lock
from opslib.workflow.unit_found import gather_found

_LOOK_EVERY_S = 0.5
_TRY_EVERY_S = 2.0
_READY_S = 900.0


def take_turn(rollout: Rollout, alias: str) -> None:
    """Roll out on one host, and note how that ended; raises only what keeps the state from being written."""
    if not rollout.may_begin():
        return
    try:
        _have_turn(rollout, alias)
    finally:
        rollout.release(alias)


def _have_turn(rollout: Rollout, alias: str) -> None:
    found: list[UnitFound] = []
    try:
        if rollout.plan.is_write:
            _prepare(rollout, alias, found.append)
        step, state, text = _run(rollout, alias)
    except Refused as error:
        step, state, text = HostStep.FAILED, State.CRITICAL, error.message
    except OpslibError as error:
        step, state, text = HostStep.UNKNOWN, State.UNKNOWN, error.message
    left, text = _look_after(rollout, alias, found[0], step, text) if found else (None, text)
    rollout.note("host", alias, step, text, state=state, left=left)


def _prepare(rollout: Rollout, alias: str, on_found: Callable[[UnitFound], None]) -> None:
    """Ask how the unit stands, then have it drained and stopped, where it may be taken down; under its lock."""
    host = reach(rollout, alias)
    with at_work(rollout, host):
        found = gather_found(host, rollout.plan.unit, replaces=replaced_unit(rollout))
        rollout.note("host", alias, HostStep.WAITING, f"its turn has come: its unit {found.words}", found=found)
        on_found(found)

        def wait(words: str) -> None:
            rollout.note("host", alias, HostStep.WAITING, words)

        rollout.admit(alias, is_serving=found.is_serving, on_wait=wait)
        if found.is_serving:
            _drain(rollout, alias, host)


def _drain(rollout: Rollout, alias: str, host: Host) -> None:
    def tell(text: str) -> None:
        rollout.note("host", alias, text=text)

    rollout.note("host", alias, HostStep.DRAINING, "its requests are worked off, then it is stopped")
    plan = rollout.plan
    report = lifecycle.drain(host, plan.unit, drain_s=plan.drain_s, is_forced=plan.is_drain_forced, tell=tell)
    if report.state is not State.OK and not (plan.is_drain_forced and report.state is not State.CRITICAL):
        raise Refused(f"it could not be drained: {report.summary}", host=alias)


def _run(rollout: Rollout, alias: str) -> tuple[HostStep, State, str]:
    """The host's own run, to its end."""
    folder = rollout.folder
    folder.log_path(alias).unlink(missing_ok=True)  # of an earlier run
    rollout.note("host", alias, HostStep.RUNNING, "its run begins")
    worker = start_worker(
        rollout.plan.runbook,
        alias,
        parameters=folder.path / PARAMETERS_FILE,
        runs_dir=folder.path.parent,
        log=folder.log_path(alias),
    )
    rollout.note("host", alias, process_id=worker.process_id)
    record = _follow(rollout, alias, worker)
    if record is None:
        said = refusal_in(worker.log) or f"its run ended with exit status {worker.exit_code} and left no record"
        is_refused = worker.exit_code == Refused.exit_code
        return (HostStep.FAILED, State.CRITICAL, said) if is_refused else (HostStep.UNKNOWN, State.UNKNOWN, said)
    step, state, text = judged(record)
    said = refusal_in(worker.log) if step is HostStep.UNKNOWN else ""  # a full disk, of which no record can tell
    return step, state, f"{text}: {said}" if said and said not in text else text


def _follow(rollout: Rollout, alias: str, worker: Worker) -> Path | None:
    """Tell what the run does until it ends; its record."""
    path, tail, section = None, None, ""
    while True:
        is_running = worker.is_running
        if path is None and (path := record_of(worker.log)) is not None:
            tail = EventTail(path)
            rollout.note("host", alias, record=path.name)
        events = tail.read() if tail else ()
        begun = [str(event["section"]) for event in events if event.get("kind") == "section-started"]
        if begun[-1:] not in ([], [section]):  # a section with nothing to do is over by now
            section = begun[-1]
            rollout.show(alias, section)
        if not is_running:
            return path
        if rollout.is_hard:
            worker.stop()
        worker.wait(_LOOK_EVERY_S)


def judged(path: Path) -> tuple[HostStep, State, str]:
    """Where a host stands by the record of its run; one that was killed is closed first.

    A kernel whose run was killed lives on for a moment, and may still be at work on the host: its end is waited for.
    """
    end_at = time.monotonic() + PATIENCE_S
    with suppress(OpslibError):
        while close_killed(path) is None and time.monotonic() < end_at:
            if (record := read_worker_record(path)) is None or record.is_ended:
                break
            time.sleep(_LOOK_EVERY_S)
    record = read_worker_record(path)
    if record is None:
        return HostStep.UNKNOWN, State.UNKNOWN, f"its record {path.name} can't be read"
    return step_of(judge_gates(record))


def _look_after(
    rollout: Rollout, alias: str, found: UnitFound, step: HostStep, text: str
) -> tuple[UnitFound | None, str]:
    """How the unit was left; where it served before and nothing was changed, it serves again."""
    unit = rollout.plan.unit
    try:
        host = reach(rollout, alias)
        left = gather_found(host, unit, replaces=replaced_unit(rollout))
    except OpslibError as error:
        return None, f"{text}; how its unit was left can't be asked: {error.message}"
    if step is HostStep.PASSED or left.is_up or not found.is_serving or left.files != found.files:
        return left, text
    try:
        with at_work(rollout, host):
            back = _bring_back(rollout, host)
        return gather_found(host, unit, replaces=replaced_unit(rollout)), f"{text}; nothing was changed, {back}"
    except OpslibError as error:
        return None, f"{text}; its unit was down, and could not be started again: {error.message}"


def _bring_back(rollout: Rollout, host: Host) -> str:
    unit = rollout.plan.unit
    if rollout.is_hard:  # whoever ends us doesn't wait
        start_unit(host, unit)
        return "the unit of before is started again"
    report = lifecycle.start(host, unit, ready_s=_READY_S, tell=lambda _text: None)
    return f"the unit of before {'serves again' if report.state is State.OK else f'does not serve: {report.summary}'}"


def reach(rollout: Rollout, alias: str) -> Host:
    """The host, once it answers; raises HostUnreachable where it doesn't for a minute."""
    host, end_at, told = rollout.open(alias), time.monotonic() + PATIENCE_S, False
    while True:
        try:
            host.run(("test", "-d", "/"), timeout_s=10)
        except HostUnreachable as error:
            if time.monotonic() > end_at or rollout.is_hard:
                raise
            if not told:
                rollout.note("host", alias, text=f"asked again for {PATIENCE_S:.0f} s: {error.message}")
                told = True
            time.sleep(_TRY_EVERY_S)
        else:
            return host


@contextmanager
def at_work(rollout: Rollout, host: Host) -> Iterator[None]:
    """The unit's lock on its host; a lock whose holder was cut off is waited for, until its host has noticed."""
    end_at = time.monotonic() + PATIENCE_S
    is_second = rollout.state.host(host.settings.alias).begun_at is not None
    while True:
        try:
            lock = hold_lock(host, rollout.plan.unit, _holder(rollout))
            lock.__enter__()
        except LockHeld:
            if not is_second or time.monotonic() > end_at or rollout.is_hard:
                raise
            time.sleep(_TRY_EVERY_S)
        else:
            break
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def replaced_unit(rollout: Rollout) -> str | None:
    """The unit whose place the rolled out one takes, if there is one."""
    replaced = rollout.plan.parameters.get("replaces")
    return str(replaced) if replaced else None


def _holder(rollout: Rollout) -> LockHolder:
    return LockHolder(
        user=login_name(),
        controller=socket.gethostname(),
        process_id=os.getpid(),
        runbook=f"rollout of {rollout.plan.runbook}",
        record=rollout.folder.path.name,
        since=datetime.now(UTC),
    )
