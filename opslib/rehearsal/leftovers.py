"""Temporary directories that know their owner: what a process that was killed left behind is swept away later."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "opslib-"
_OWNER = ".owner"


def hold(directory: Path) -> int:
    """Mark a temporary directory as this process's own, until the descriptor that is returned is closed.

    The mark is a locked file: the kernel frees it with the process, however that ends. Where the file system knows no
    locks there is none, and the directory is never swept.
    """
    unlocked = directory / f"{_OWNER}.new"
    descriptor = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        unlocked.unlink(missing_ok=True)
    else:
        unlocked.rename(directory / _OWNER)  # who sees the mark sees it locked
    return descriptor


def sweep(place: Path | None = None) -> tuple[Path, ...]:
    """Remove the directories that bear a mark of this login whose process is gone; says which.

    `place` is where temporary directories lie. What was never marked isn't touched, nor anybody else's.
    """
    swept = []
    for directory in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        if _is_left_behind(directory):
            shutil.rmtree(directory, ignore_errors=True)
            swept.append(directory)
    return tuple(swept)


def _is_left_behind(directory: Path) -> bool:
    with suppress(OSError):
        if directory.is_symlink() or directory.lstat().st_uid != os.getuid():
            return False
        descriptor = os.open(directory / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        return True
    return False
