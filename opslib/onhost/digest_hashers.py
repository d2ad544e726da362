"""Ways to compute SHA-256 on this host, how fast each is here, and which to take."""

import hashlib
import mmap
import os
import resource
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from opslib.onhost.verify_pool import is_rotating, n_cores

CHUNK = 256 * 1024  # stays in the second-level cache between being read and being hashed
WINDOW = 8 << 20
MAP_POPULATE = 0x8000  # mmap(2); Python has a name for it from 3.10
TRIAL_BYTES = {"hashlib": 8 << 20, "openssl": 8 << 20, "sha256sum": 2 << 20}
PROGRAMS = {"openssl": ["openssl", "dgst", "-sha256", "-r"], "sha256sum": ["sha256sum", "-b"]}
WORTH_BYTES = 1 << 30  # below this, trying costs more than it can gain
BETTER = 1.15  # another program has to be this much faster: it tells no progress within a file

Count = Callable[[int], None]


def choose_hasher(root: str, n_bytes: int) -> Dict[str, Any]:
    """The hasher to use for `n_bytes` under `root`: its name, how many at once, and what each was measured at."""
    n_processes = 1 if is_rotating(root) else n_cores()
    if n_bytes < WORTH_BYTES:
        return {"name": "hashlib", "n_processes": n_processes, "measured": {}}
    rates = {name: measure(name) for name in TRIAL_BYTES}
    measured = {name: rate for name, rate in rates.items() if rate}
    best = max(measured, key=lambda name: measured[name] * (BETTER if name == "hashlib" else 1))
    return {"name": best, "n_processes": n_processes, "measured": {name: int(rate) for name, rate in measured.items()}}


def measure(name: str) -> Optional[float]:
    """Bytes per processor second of one hasher on a few megabytes of memory; None where it isn't there.

    Processor time, not the clock's: a busy host would make one or the other look slow by chance.
    """
    data = bytes(TRIAL_BYTES[name])
    try:
        if name == "hashlib":
            began_at = time.process_time()
            total = hashlib.sha256()
            for begin in range(0, len(data), CHUNK):
                total.update(data[begin : begin + CHUNK])
            total.hexdigest()
            return len(data) / max(1e-4, time.process_time() - began_at)
        return _measure_program(PROGRAMS[name], data)
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError):
        return None


def _measure_program(vector: List[str], data: bytes) -> float:
    """What the data cost less what nothing costs, so that starting the program doesn't count."""
    took = []
    for content in (b"", data):
        descriptor = os.memfd_create("trial")
        try:
            os.write(descriptor, content)
            path = "/proc/self/fd/%d" % descriptor
            began_at = _children_s()
            subprocess.run([*vector, path], pass_fds=(descriptor,), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=True, timeout=10)  # fmt: skip
            took.append(_children_s() - began_at)
        finally:
            os.close(descriptor)
    return len(data) / max(1e-4, took[1] - took[0])


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def hash_file(path: str, name: str, kinds: List[str], count: Count, *, is_careful: bool = True) -> Dict[str, str]:
    """{"sha256": …, "sha1": …} as `kinds` ask; sha1 is git's blob id, which small files have on the hub.

    `is_careful` False maps the file into memory, which saves a tenth; a bad sector, or a file that is cut meanwhile,
    then ends the process instead of raising OSError.
    """
    if name != "hashlib" and kinds == ["sha256"]:
        size = os.path.getsize(path)
        digest = _by_program(PROGRAMS[name], path)
        count(size)
        return {"sha256": digest}
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        totals: Dict[str, Any] = {}
        for kind in kinds:
            totals[kind] = hashlib.sha256() if kind == "sha256" else _sha1()
        if "sha1" in totals:
            totals["sha1"].update(b"blob %d\0" % size)
        for piece in _read(file) if is_careful else _mapped(file, size):
            for total in totals.values():
                total.update(piece)
            count(len(piece))
    return {kind: total.hexdigest() for kind, total in totals.items()}


def _sha1() -> Any:
    """Git's own hash; a host in FIPS mode gives it only for other purposes than security."""
    purpose: Dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
    return hashlib.new("sha1", **purpose)  # noqa: S324


def _read(file: Any) -> Iterator[Any]:
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    size = file.readinto(buffer)
    while size:
        yield view[:size]
        size = file.readinto(buffer)


def _mapped(file: Any, size: int) -> Iterator[Any]:
    """The file in windows; while one is hashed, the next is being read ahead."""
    flags = mmap.MAP_SHARED | (MAP_POPULATE if sys.platform == "linux" else 0)
    for begin in range(0, size, WINDOW):
        length = min(WINDOW, size - begin)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), begin + length, WINDOW, os.POSIX_FADV_WILLNEED)
        with mmap.mmap(file.fileno(), length, flags=flags, prot=mmap.PROT_READ, offset=begin) as window:
            yield window


def _by_program(vector: List[str], path: str) -> str:
    with open(path, "rb") as file:  # as standard input: no name can be taken for an option
        done = subprocess.run(vector, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    digest = done.stdout[:64].decode("ascii", "replace").lstrip("\\")
    if done.returncode or len(digest) != 64:
        raise OSError("%s: %s" % (vector[0], done.stderr.decode("utf-8", "replace").strip()[:200]))
    return digest
