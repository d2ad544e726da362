"""Hashes files and compares them with the digests that their download recorded."""

import hashlib
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Tuple

CHUNK = 4 * 1024 * 1024
MAX_THREADS = 4  # hashlib lets other threads run; a disk seldom feeds more
TOLD_S = 1.0
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

Emit = Callable[..., None]


def recorded(root: str, files: List[Dict[str, Any]], notes: List[Dict[str, Any]]) -> Dict[str, str]:
    """The digest of each readable file that has one: etags of `hf download`, names of the hub cache's blobs."""
    etags = {note["path"]: note["etag"].strip('"') for note in notes}
    found = {}
    for entry in files:
        path = entry["path"]
        if path.startswith(".cache") or not entry["is_readable"]:
            continue
        etag = etags.get(path, "")
        if not etag and entry["is_symlink"]:
            etag = os.path.basename(os.readlink(os.path.join(root, path)))
        if DIGEST.fullmatch(etag):
            found[path] = etag
    return found


def digest_of(path: str, like: str, count: Callable[[int], None]) -> str:
    """SHA-256 for a digest of 64 digits, git's blob id (SHA-1) for one of 40: small files have that on the hub."""
    total = hashlib.sha256() if len(like) == 64 else hashlib.sha1()  # noqa: S324 - git's own
    with open(path, "rb") as file:
        if len(like) == 40:
            total.update(b"blob %d\0" % os.fstat(file.fileno()).st_size)
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return total.hexdigest()
            total.update(chunk)
            count(len(chunk))


def compare_digests(root: str, wanted: Dict[str, str], emit: Emit) -> List[Dict[str, Any]]:
    """Per file what was recorded and what was found, or why it could not be read; tells how far it is."""
    state = {"files": 0, "bytes": 0, "told_at": time.monotonic()}  # type: Dict[str, Any]
    lock = threading.Lock()

    def count(size: int) -> None:
        with lock:
            state["bytes"] += size
            if time.monotonic() - state["told_at"] > TOLD_S:
                state["told_at"] = time.monotonic()
                emit("progress", files=state["files"], n_files=len(wanted), bytes=state["bytes"])

    def compare(item: Tuple[str, str]) -> Dict[str, Any]:
        path, like = item
        answer = {"path": path, "recorded": like, "found": "", "problem": None}  # type: Dict[str, Any]
        try:
            answer["found"] = digest_of(os.path.join(root, path), like, count)
        except OSError as error:
            answer["problem"] = str(error)
        with lock:
            state["files"] += 1
        return answer

    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(compare, sorted(wanted.items())))
