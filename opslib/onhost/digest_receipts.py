"""What was hashed before: a file whose size, times and inode are as they were is not hashed again.

Receipts lie in the operator's state folder on the host, one file per checkpoint, never beside the weights. A receipt
is kept as soon as its file is hashed, so that an interrupted run goes on where it was.
"""

import hashlib
import json
import os
import time
from typing import Any, Dict, List, Optional

FINE_S = 0.1  # a change this shortly before hashing may carry the same time as one during it
COARSE_S = 2.0  # the same, where the file system counts in seconds


def state_folder(wanted: str) -> Optional[str]:
    """A folder for receipts that this login may write: below `wanted`, else in its own home; None without any."""
    for folder in receipt_folders(wanted):
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:  # noqa: PERF203
            continue
    return None


def receipt_folders(wanted: str) -> List[str]:
    """Where receipts may lie: below `wanted`, and in the login's own home."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return [os.path.join(base, "verified") for base in (wanted, os.path.join(home, "opslib")) if base]


def marks_of(status: os.stat_result) -> List[int]:
    """What must not have changed for a digest to hold; the ctime can't be set back by a user."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


class Receipts:
    """The receipts of one checkpoint directory; without a folder, none are read and none are kept."""

    def __init__(self, folder: Optional[str], root: str, *, is_used: bool = True) -> None:
        self.path: Optional[str] = None
        self.known: Dict[str, Dict[str, Any]] = {}
        if folder is None:
            return
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        self.path = os.path.join(folder, "%s-%s.jsonl" % (os.path.basename(root.rstrip("/"))[:80], name))
        if is_used:
            self._load()

    def _load(self) -> None:
        try:
            with open(str(self.path), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, ValueError):
            return
        for line in lines:
            try:
                row = json.loads(line)
                self.known[row["path"]] = {"marks": row["marks"], "digests": dict(row["digests"])}
            except (ValueError, RecursionError, KeyError, TypeError):  # noqa: PERF203
                continue  # a line that was cut by an interrupt

    def find(self, path: str, marks: List[int], kinds: List[str]) -> Optional[Dict[str, str]]:
        """The digests of an unchanged file, if all `kinds` of them are known."""
        row = self.known.get(path)
        if row is None or row["marks"] != marks or not all(kind in row["digests"] for kind in kinds):
            return None
        return {kind: row["digests"][kind] for kind in kinds}

    def keep(self, path: str, marks: List[int], digests: Dict[str, str], began_at: float) -> None:
        """Note a hashed file at once, unless it changed so shortly before that a later change might not show."""
        margin = FINE_S if marks[2] % 1_000_000_000 else COARSE_S
        if self.path is None or began_at - marks[2] / 1e9 < margin:
            return
        row = {"path": path, "marks": marks, "digests": digests, "hashed_at": round(time.time(), 3)}
        self.known[path] = row
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:
            self.path = None

    def tidy(self) -> None:
        """Leave one line per file."""
        if self.path is None or not self.known:
            return
        fresh = "%s.%d" % (self.path, os.getpid())
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(dict(row, path=path)) + "\n" for path, row in sorted(self.known.items()))
            os.replace(fresh, self.path)
        except OSError:
            pass
