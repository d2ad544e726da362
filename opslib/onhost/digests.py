"""Hashes the files of a checkpoint, several at once, and tells each result as it comes; known ones are not read."""

import os
import stat
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

from opslib.onhost.digest_expected import Expected
from opslib.onhost.digest_hashers import choose_hasher, hash_file
from opslib.onhost.digest_receipts import Receipts, marks_of
from opslib.onhost.verify_pool import Tell, Work, run_pool

TOLD_BYTES = 32 << 20
UNHASHED = (".incomplete", ".aria2", ".lock", ".part", ".crdownload")

Progress = Callable[..., None]


def is_hashed(entry: Dict[str, Any]) -> bool:
    """Whether a file belongs to the model: what downloads note and leave behind does not."""
    return (
        bool(entry["is_readable"]) and not entry["path"].startswith(".cache") and not entry["path"].endswith(UNHASHED)
    )


def hash_files(
    root: str,
    files: List[Dict[str, Any]],
    expected: Expected,
    receipts: Receipts,
    progress: Progress,
    *,
    is_everything: bool = True,
) -> Tuple[List[Dict[str, Any]], Dict[str, Any]]:
    """Per file its digests, or why there are none; and the hasher that was used, with its speed.

    `is_everything` False leaves out those that there is nothing to compare with: they answer without a digest.
    """
    known = sorted((entry for entry in files if is_hashed(entry)), key=lambda entry: -entry["size"])
    wanted = [entry for entry in known if is_everything or entry["path"] in expected]
    left_out = [entry["path"] for entry in known if not is_everything and entry["path"] not in expected]
    answers, open_files = _from_receipts(root, wanted, expected, receipts)
    n_bytes = sum(entry["size"] for entry in open_files)
    hasher = dict(choose_hasher(root, n_bytes), n_receipts=len(answers), bytes_per_s=None)
    done_files, done_bytes, total = len(answers), 0, sum(entry["size"] for entry in wanted)
    known_bytes = total - n_bytes
    began_at = time.monotonic()
    for told in _hash_all(root, open_files, expected, hasher):
        if "path" in told:
            done_files += 1
            answers.append(told)
            marks, hashed_at = told.pop("marks", None), told.pop("began_at", None)
            if told["problem"] is None:
                receipts.keep(told["path"], marks, told["digests"], hashed_at)
        done_bytes += told.pop("counted", 0)
        progress("digest", files=done_files, n_files=len(wanted), bytes=known_bytes + done_bytes, total_bytes=total)
    took = time.monotonic() - began_at
    if done_bytes:
        hasher["bytes_per_s"] = int(done_bytes / max(took, 1e-6))
    receipts.tidy()
    answers += [{"path": path, "digests": {}, "problem": None, "is_receipt": False} for path in left_out]
    return answers, hasher


def kinds_for(path: str, expected: Expected) -> List[str]:
    """SHA-256 of every file; of those for which a git blob id is recorded, that too."""
    has_sha1 = any(len(row["digest"]) == 40 for row in expected.get(path, ()))
    return ["sha256", "sha1"] if has_sha1 else ["sha256"]


def _from_receipts(
    root: str, wanted: List[Dict[str, Any]], expected: Expected, receipts: Receipts
) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
    answers, left = [], []  # type: List[Dict[str, Any]], List[Dict[str, Any]]
    for entry in wanted:
        path = entry["path"]
        try:
            marks = marks_of(os.stat(os.path.join(root, path)))
            digests = receipts.find(path, marks, kinds_for(path, expected))
        except OSError:
            digests = None
        if digests:
            answers.append({"path": path, "digests": digests, "problem": None, "is_receipt": True})
        else:
            left.append(entry)
    return answers, left


def _hash_all(
    root: str, entries: List[Dict[str, Any]], expected: Expected, hasher: Dict[str, Any]
) -> Iterator[Dict[str, Any]]:
    """What is told of every entry; those whose process ended are read once more, with care."""
    left = entries
    for is_careful in (False, True):
        failed = []  # type: List[Dict[str, Any]]
        for number, told in run_pool(
            len(left), hasher["n_processes"], _worker(root, left, expected, hasher, is_careful)
        ):
            if "marks" in told:
                yield dict(told, path=left[number]["path"], is_receipt=False)
            elif "counted" in told:
                yield told
            elif told.get("problem"):
                failed.append(dict(left[number], problem=told["problem"]))
        left = failed
    for entry in left:
        yield {"path": entry["path"], "digests": {}, "problem": entry["problem"], "is_receipt": False}


def _worker(
    root: str, entries: List[Dict[str, Any]], expected: Expected, hasher: Dict[str, Any], is_careful: bool
) -> Work:
    def work(number: int, tell: Tell) -> None:
        path = entries[number]["path"]
        counted = [0]

        def count(size: int) -> None:
            counted[0] += size
            if counted[0] >= TOLD_BYTES:
                tell(counted=counted[0])
                counted[0] = 0

        kinds = kinds_for(path, expected)
        answer = _hashed(os.path.join(root, path), hasher["name"], kinds, count, is_careful=is_careful)
        tell(counted=counted[0], **answer)

    return work


def _hashed(
    path: str, name: str, kinds: List[str], count: Callable[[int], None], *, is_careful: bool
) -> Dict[str, Any]:
    """The digests of a file, and whether it stayed the same while it was read."""
    began_at = time.time()
    try:
        before = os.stat(path)
        if not stat.S_ISREG(before.st_mode):
            raise OSError("not a regular file")  # noqa: TRY301
        digests = hash_file(path, name, kinds, count, is_careful=is_careful)
        is_steady = marks_of(before) == marks_of(os.stat(path))
    except OSError as error:
        return {"marks": [], "digests": {}, "problem": str(error), "began_at": began_at}
    problem = None if is_steady else "it changed while it was read"
    return {"marks": marks_of(before), "digests": digests, "problem": problem, "began_at": began_at}
