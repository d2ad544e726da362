"""Reads a checkpoint directory as deep as a level asks; prints progress, then one listing of what was found.

Arguments: {"path": directory, "level": one of LEVELS, "expect": {path: {"digest", "size", "source"}}, "expect_commit",
"state_dir": where receipts are kept, "no_receipts": bool, "only_expected": hash only files with a known digest, "user":
whose read access counts, "seed": of the sample}.
Gathers only: what it means is judged elsewhere.
"""

import json
import os
import re
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from opslib.onhost.digest_expected import gather_expected
from opslib.onhost.digest_receipts import Receipts, state_folder
from opslib.onhost.digests import hash_files
from opslib.onhost.safetensors_header import HeaderProblem, read_header
from opslib.onhost.scan import SAMPLE_BYTES, SMALL_BYTES, STRIDE_BYTES, scan_file
from opslib.onhost.verify_files import (
    list_files,
    read_companions,
    read_download_metadata,
    reader_for,
    resolve_root,
    suspicious,
    unfinished_blobs,
)
from opslib.onhost.verify_pool import Tell, is_rotating, n_cores, run_pool
from opslib.onhost.verify_weights import Weights, read_indices, read_weights

LEVELS = ("extents", "sample", "full-scan", "digest")  # each a superset of the first; digest includes the sample
PROGRESS_S = 0.25
TOLD_BYTES = 64 << 20
LONE_SURROGATE = re.compile(r"(?<!\\ud[89ab][0-9a-f]{2})\\udc[89a-f][0-9a-f]")


def emit(event: str, **fields: Any) -> None:
    """One JSON line, flushed; a file name's undecodable bytes become U+FFFD."""
    print(LONE_SURROGATE.sub(r"\\ufffd", json.dumps(dict(fields, event=event))), flush=True)


class Progress:
    """Tells how far a stage is, a few times a second: files, bytes, bytes per second, seconds left."""

    def __init__(self) -> None:
        self.stage = ""
        self.began_at = self.told_at = 0.0
        self.at_start = 0

    def __call__(self, stage: str, *, files: int, n_files: int, bytes: int, total_bytes: int) -> None:  # noqa: A002
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.began_at, self.told_at, self.at_start = stage, now, 0.0, bytes
        if now - self.told_at < PROGRESS_S and files < n_files:
            return
        self.told_at = now
        rate = (bytes - self.at_start) / max(now - self.began_at, 1e-3)
        eta_s = round((total_bytes - bytes) / rate, 1) if rate else None
        emit("progress", stage=stage, files=files, n_files=n_files, bytes=bytes, total_bytes=total_bytes,
             bytes_per_s=int(rate), eta_s=eta_s)  # fmt: skip


def scan(weights: Weights, level: str, seed: int, progress: Progress) -> Tuple[List[Dict[str, Any]], int]:
    """What the bytes of all sound safetensors files hold, and how many were read."""
    sound = [
        shard
        for shard in weights.shards
        if shard["problem"] is None and shard["path"].endswith(".safetensors") and shard["size"] >= shard["extent"]
    ]
    is_full = level == "full-scan"

    def work(number: int, tell: Tell) -> None:
        path = os.path.join(weights.root, sound[number]["path"])
        try:
            tensors, data_begin, _ = read_header(path, sound[number]["size"])
            for told in _grouped(scan_file(path, tensors, data_begin, is_full=is_full, seed=seed + number)):
                tell(**told)
        except (OSError, HeaderProblem) as error:
            tell(problem=str(error))

    answers = []  # type: List[Dict[str, Any]]
    covered = n_read = files = 0
    total = sum(shard["size"] for shard in sound)
    n_workers = 1 if is_rotating(weights.root) else n_cores()
    for number, told in run_pool(len(sound), n_workers, work):
        covered += told.pop("covered", 0)
        n_read += told.pop("n_read", 0)
        files += 1 if told.get("done") else 0
        if told.get("runs") or told.get("specials") or told.get("problem"):
            answers.append(dict(told, path=sound[number]["path"], begin=sound[number]["data_begin"]))
        stage = "full-scan" if is_full else "sample"
        progress(stage, files=files, n_files=len(sound), bytes=covered, total_bytes=total)
    return answers, n_read


def _grouped(steps: Iterator[Any]) -> Iterator[Dict[str, Any]]:
    """Byte counts in larger portions, then what was found."""
    covered = 0
    for step in steps:
        if isinstance(step, dict):
            yield dict(step, covered=covered)
            return
        covered += step
        if covered >= TOLD_BYTES:
            yield {"covered": covered}
            covered = 0


def gather(root: str, arguments: Dict[str, Any], level: str) -> Dict[str, Any]:
    """Everything that a level asks of a directory."""
    progress = Progress()
    files = list_files(root, reader_for(arguments.get("user"))) + unfinished_blobs(root)
    for entry in files:
        if not entry["path"].startswith(".cache") and entry["is_readable"]:
            entry["suspicion"] = suspicious(os.path.join(root, entry["path"]), entry["size"])
    weights = read_weights(root, files, progress)
    found = {
        "files": files,
        "companions": read_companions(root, files),
        "shards": weights.shards,
        "indices": read_indices(weights, files),
        "download": read_download_metadata(root),
        "header_bytes": weights.header_bytes,
        "expect": arguments.get("expect") or {},
        "expect_commit": arguments.get("expect_commit"),
    }  # type: Dict[str, Any]
    found["repeated"] = [] if found["indices"] else weights.repeated()
    if level != "extents":
        seed = int(arguments.get("seed") or int.from_bytes(os.urandom(4), "big"))
        found["scans"], found["scanned_bytes"] = scan(weights, level, seed, progress)
        found["plan"] = {"seed": seed, "sample_bytes": SAMPLE_BYTES, "stride_bytes": STRIDE_BYTES,
                         "small_bytes": SMALL_BYTES}  # fmt: skip
    if level == "digest":
        found.update(_digests(root, arguments, found, progress))
    return found


def _digests(root: str, arguments: Dict[str, Any], found: Dict[str, Any], progress: Progress) -> Dict[str, Any]:
    expected = gather_expected(root, found["files"], found["download"])
    for path, row in (arguments.get("expect") or {}).items():
        if row.get("digest"):
            expected.setdefault(path, []).append(row)
    folder = state_folder(str(arguments.get("state_dir") or ""))
    receipts = Receipts(folder, root, is_used=not arguments.get("no_receipts"))
    answers, hasher = hash_files(
        root, found["files"], expected, receipts, progress, is_everything=not arguments.get("only_expected")
    )
    for answer in answers:
        answer["expected"] = expected.get(answer["path"], [])
    return {"digests": answers, "hasher": hasher, "receipts_path": receipts.path}


def problem_of(path: str, user: Optional[str]) -> Optional[str]:
    """Why nothing can be said about a directory; None where it can be read."""
    if not os.path.isdir(path):
        return "not a directory" if os.path.lexists(path) else "no such directory"
    if not os.access(path, os.R_OK | os.X_OK):
        return "unreadable"
    try:
        reader_for(user)
    except (KeyError, ImportError):
        return "no such user: %s" % user
    return None


def main(arguments: Dict[str, Any]) -> int:
    """Print progress lines and the listing; exit status 0, 2 for an unknown level."""
    path, level = str(arguments["path"]), str(arguments.get("level", "extents"))
    if level not in LEVELS:
        sys.stderr.write("unknown level %s\n" % level)
        return 2
    started_at = time.monotonic()
    listing = {"path": path, "level": level, "exists": os.path.exists(path)}  # type: Dict[str, Any]
    listing["problem"] = problem_of(path, arguments.get("user"))
    if listing["problem"] is None:
        root, commit = resolve_root(os.path.abspath(path))
        listing.update(path=root, commit=commit)
        listing.update(gather(root, arguments, level))
    emit("listing", duration_s=round(time.monotonic() - started_at, 3), **listing)
    return 0
