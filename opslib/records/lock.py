"""The controller's own lock of a unit: one run at a time for a login of this machine, whatever checkout it uses."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import HostSettings
from opslib.domain.lock import LockHolder, lock_held
from opslib.errors import PrivilegeRefused, reason_of
from opslib.records.folder import atomic_write, safe_name

_NAMED_WITHIN_S = 1.0  # between taking a lock and writing who has it


def locks_dir() -> Path:
    """Where the locks lie: $OPSLIB_LOCKS, else $XDG_STATE_HOME/opslib/locks, else ~/.local/state/opslib/locks."""
    override, state = os.environ.get("OPSLIB_LOCKS"), os.environ.get("XDG_STATE_HOME")
    if override:
        return Path(override).resolve()
    return (Path(state) if state else Path.home() / ".local" / "state") / "opslib" / "locks"


def controller_lock_path(settings: HostSettings, unit: str) -> Path:
    """The lock file of a unit: named by the host's address, since another checkout may give it another alias."""
    place = f"{settings.address.lower()}-{settings.port or 22}-{unit_name(unit).removesuffix('.service')}"
    return locks_dir() / f"{safe_name(place)}.lock"


@contextmanager
def hold_controller_lock(settings: HostSettings, unit: str, holder: LockHolder) -> Iterator[LockHolder | None]:
    """The lock, while the block lasts; yields who held it before and never freed it, None where it was free.

    The kernel frees it with the process that holds it, however that ends. Raises LockHeld, naming who has it, and
    PrivilegeRefused where no lock can be made.
    """
    path = controller_lock_path(settings, unit)
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise lock_held(unit, _named(path), host=settings.alias) from None
    except OSError as error:
        hint = "set $OPSLIB_LOCKS to a directory that this login may write"
        raise PrivilegeRefused(f"the lock {path} can't be taken: {reason_of(error)}", hint=hint) from error
    try:
        left_behind = _read(path)
        atomic_write(_name_file(path), holder.model_dump_json().encode())
        yield left_behind
    finally:
        _name_file(path).unlink(missing_ok=True)
        lock.release()


def _name_file(path: Path) -> Path:
    return path.with_suffix(".json")


def _read(path: Path) -> LockHolder | None:
    with suppress(OSError, ValueError):
        return LockHolder.model_validate_json(_name_file(path).read_bytes())
    return None


def _named(path: Path) -> LockHolder | None:
    """Who has the lock: the name of a process that is gone is that of the one before."""
    deadline = time.monotonic() + _NAMED_WITHIN_S
    while (holder := _read(path)) is None or not _is_there(holder):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return holder


def _is_there(holder: LockHolder) -> bool:
    return holder.controller != socket.gethostname() or Path(f"/proc/{holder.process_id}").exists()
