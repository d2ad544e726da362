"""One run at a time changes a unit: the lock that a writing run takes before it changes anything, and its end."""

import atexit
import getpass
import os
import socket

from opslib.app.run import Run
from opslib.domain.lock import LockHolder
from opslib.domain.states import State
from opslib.workflow.lock import HeldLock, hold_lock

LOCK = "lock"  # under which name the run keeps it


def lock_unit(run: Run) -> HeldLock:
    """Take the lock of the run's unit on its host, or keep the one that it has; freed with the run or its process.

    Raises LockHeld, naming who has it, PrivilegeRefused and HostUnreachable; nothing was changed then.
    """
    held: HeldLock | None = run.answers.get(LOCK)
    if held is not None and held.is_held:
        return held

    def tell(text: str) -> None:
        run.tell("line", text, section="preflight", state=State.WARNING)

    lock = run.closing.enter_context(hold_lock(run.host, run.parameters.unit, holder_of(run), on_change=tell))
    atexit.register(run.closing.close)
    run.answers[LOCK] = lock
    return lock


def require_lock(run: Run) -> None:
    """Come back where the run still has the lock that it took, if it took one; else raises LockLost."""
    held: HeldLock | None = run.answers.get(LOCK)
    if held is not None:
        held.require()


def holder_of(run: Run) -> LockHolder:
    """Who the run is, to others who want the same unit."""
    return LockHolder(
        user=getpass.getuser(),
        controller=socket.gethostname(),
        process_id=os.getpid(),
        runbook=run.record.runbook,
        record=run.folder.path.name,
        since=run.record.started_at,
    )
