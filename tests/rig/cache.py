"""What is costly to make is made once, outside the checkout, by one process at a time."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


class RigUnavailable(Exception):  # noqa: N818 - a statement about the machine, not a fault of the code
    """The real host (or the real engine) cannot be had here; the text says why in one line."""


class EngineUnavailable(RigUnavailable):
    """The real engine cannot be installed here; in continuous integration too that is a skip, not a failure."""


def cache_dir() -> Path:
    """Where base images and engines are kept between runs (never in the checkout)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opslib-test"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The directory `name` of the cache; `build` fills it where it is missing, all of it or nothing."""
    wanted = cache_dir() / name
    if wanted.is_dir():
        return wanted
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with (wanted.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.is_dir():
            partial = wanted.parent / f".{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(wanted)
    return wanted
