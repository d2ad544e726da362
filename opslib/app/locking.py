"""One run at a time changes a unit: the lock that a writing run takes before it changes anything, and its end."""

import atexit
import os
import socket
from contextlib import ExitStack

from opslib.app.run import Run
from opslib.domain.facts.systemd import unit_name
from opslib.domain.lock import LockHolder
from opslib.domain.states import State
from opslib.records.lock import hold_controller_lock
from opslib.records.operator import login_name
from opslib.workflow.lock import HeldLock, hold_lock

LOCK = "lock"  # under which name the run keeps it
_LOCK_HERE = "controller-lock"
_holding: dict[tuple[str, str], ExitStack] = {}  # what this process holds, by host and unit


def lock_unit(run: Run) -> HeldLock | None:
    """Take the locks of the run's unit, on this machine and on its host, or keep them; freed with run or process.

    A dry run takes none.

    Raises LockHeld, naming who has it, PrivilegeRefused and HostUnreachable; nothing was changed then.
    """
    if run.is_dry_run:
        return None
    held: HeldLock | None = run.answers.get(LOCK)
    if held is not None and held.is_held:
        return held
    locks = _locks_of(run)
    _lock_here(run, locks)
    said: list[str] = []

    def tell(text: str) -> None:  # by the lock's own thread
        said.append(text)
        run.tell("line", text, section="preflight", state=State.WARNING)

    def keep() -> None:
        for text in said:
            run.note(text)

    locks.callback(keep)
    lock = locks.enter_context(hold_lock(run.host, run.parameters.unit, holder_of(run), on_change=tell))
    run.answers[LOCK] = lock
    locks.callback(run.answers.pop, LOCK, None)  # a cell that is run again takes it again
    if lock.left_over is not None:
        run.note(_taken_over(run, lock.left_over, f"on {run.alias}"))
    return lock


def _locks_of(run: Run) -> ExitStack:
    """What ends with the run or its process; an earlier run of this process gives up its own.

    A notebook whose first cell is run again begins a new run, and the one before never ends.
    """
    key = (run.alias, unit_name(run.parameters.unit))
    earlier, locks = _holding.get(key), ExitStack()
    if earlier is not None:
        earlier.close()
    _holding[key] = run.closing.enter_context(locks)
    atexit.register(run.closing.close)
    return locks


def _lock_here(run: Run, locks: ExitStack) -> None:
    """The lock of this machine, which holds between all its checkouts; a practice host is this run's own anyway."""
    if _LOCK_HERE in run.answers or run.host.settings.is_rehearsal:
        return
    unit = run.parameters.unit
    left = locks.enter_context(hold_controller_lock(run.host.settings, unit, holder_of(run)))
    run.answers[_LOCK_HERE] = True
    locks.callback(run.answers.pop, _LOCK_HERE, None)
    if left is not None:
        run.note(_taken_over(run, left, "on this machine"))


def _taken_over(run: Run, left: LockHolder, where: str) -> str:
    return f"the lock of {run.parameters.unit} {where} was left behind by {left.words}; they are gone: taken over"


def require_lock(run: Run) -> None:
    """Come back where the run has its unit's lock, taken now if it was not before; raises LockLost where it is lost."""
    held: HeldLock | None = run.answers.get(LOCK)
    if held is None:
        lock_unit(run)
    else:
        held.require()


def holder_of(run: Run) -> LockHolder:
    """Who the run is, to others who want the same unit."""
    return LockHolder(
        user=login_name(),
        controller=socket.gethostname(),
        process_id=os.getpid(),
        runbook=run.record.runbook,
        record=run.folder.path.name,
        since=run.record.started_at,
    )
