"""A disk so small that it is soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import not_here


@contextmanager
def small_disk(place: Path, kib: int) -> Iterator[Path]:
    """A disk of so many KiB at this place, while the block lasts."""
    options = ["-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)]
    mounted = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if mounted.returncode:
        not_here(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
