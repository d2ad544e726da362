"""Which digest each file should have, as far as anything on the host says so; all sources are kept side by side.

Sources: what `hf download` noted, names of the hub cache's blobs, lists of sha256sum, manifests, a git clone.
"""

import json
import os
import re
import subprocess
from typing import Any, Dict, List

from opslib.onhost.verify_files import parse_pointer

DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SUMS = re.compile(r"(?i)^(sha256sums?(\.txt)?|checksums?(\.(txt|sha256))?|.*\.sha256(sum)?)$")
SUM_LINE = re.compile(r"^(\\?)([0-9a-fA-F]{64}) [ *](.+)$")
MANIFESTS = ("MANIFEST", "MANIFEST.json")
MAX_LIST_BYTES = 50_000_000
GIT_S = 60.0

Expected = Dict[str, List[Dict[str, Any]]]  # path -> [{"source", "digest", "size"?}]


def gather_expected(root: str, files: List[Dict[str, Any]], notes: List[Dict[str, Any]]) -> Expected:
    """Every digest that is recorded on the host for a file of the directory."""
    found = {}  # type: Expected
    present = {entry["path"]: entry for entry in files}
    for note in notes:
        _add(found, note["path"], "download metadata", note["etag"].strip('"'))
    for path, entry in present.items():
        if entry["is_symlink"] and not entry["is_dangling"] and "blobs" in os.readlink(os.path.join(root, path)):
            _add(found, path, "blob name", os.path.basename(os.readlink(os.path.join(root, path))))
        name = os.path.basename(path)
        if SUMS.match(name) and entry["is_readable"]:
            for listed, digest in read_sums(os.path.join(root, path), name).items():
                _add(found, os.path.normpath(os.path.join(os.path.dirname(path), listed)), name, digest)
        elif path in MANIFESTS and entry["is_readable"]:
            for listed, row in read_manifest(os.path.join(root, path)).items():
                _add(found, listed, path, row.get("sha256", ""), row.get("size"))
    if os.path.exists(os.path.join(root, ".git")):
        for listed, row in read_git(root).items():
            _add(found, listed, "git", row["digest"], row.get("size"))
    return found


def _add(found: Expected, path: str, source: str, digest: Any, size: Any = None) -> None:
    if isinstance(digest, str) and DIGEST.fullmatch(digest.lower()):
        row = {"source": source, "digest": digest.lower()}  # type: Dict[str, Any]
        if isinstance(size, int):
            row["size"] = size
        found.setdefault(path, []).append(row)


def read_sums(path: str, name: str) -> Dict[str, str]:
    """Digests by file name of a list as `sha256sum` writes it; a file of one bare digest speaks of its namesake."""
    try:
        if os.path.getsize(path) > MAX_LIST_BYTES:
            return {}
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        match = SUM_LINE.match(line)
        if match:
            listed = match.group(3)
            if match.group(1):  # names with newlines and backslashes are written escaped
                listed = listed.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")
            found[listed] = match.group(2)
        elif re.fullmatch(r"[0-9a-fA-F]{64}", line.strip()) and "." in name:
            found[name.rsplit(".", 1)[0]] = line.strip()
    return found


def read_manifest(path: str) -> Dict[str, Dict[str, Any]]:
    """Digests and sizes by path of a manifest of ours ({"files": {path: {"sha256", "size"}}})."""
    try:
        if os.path.getsize(path) > MAX_LIST_BYTES:
            return {}
        with open(path, encoding="utf-8") as file:
            files = json.load(file)["files"]
        return {name: row for name, row in files.items() if isinstance(row, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def read_git(root: str) -> Dict[str, Dict[str, Any]]:
    """Blob ids of a clone's files, and for files of git-lfs the digests that their pointers name; {} without git."""
    try:
        listing = _git(root, ["ls-tree", "-r", "-l", "-z", "HEAD"], b"")
        found = {}  # type: Dict[str, Dict[str, Any]]
        for line in listing.split(b"\0"):
            words, _, name = line.partition(b"\t")
            fields = words.split()
            if len(fields) == 4 and fields[1] == b"blob" and fields[0] != b"120000":
                found[os.fsdecode(name)] = {"digest": fields[2].decode("ascii"), "size": int(fields[3])}
        small = [path for path, row in found.items() if row["size"] < 300]
        wanted = "".join(found[path]["digest"] + "\n" for path in small).encode("ascii")
        answer = _git(root, ["cat-file", "--batch"], wanted)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    position = 0
    for path in small:
        end = answer.index(b"\n", position)
        size = int(answer[position:end].split()[2])
        pointer = parse_pointer(answer[end + 1 : end + 1 + size])
        if DIGEST.fullmatch(pointer.get("digest", "")):
            found[path] = pointer
        position = end + 1 + size + 1
    return found


def _git(root: str, arguments: List[str], given: bytes) -> bytes:
    # Someone else's clone is read too; nothing of its configuration can run a program in these two verbs.
    vector = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", root]
    done = subprocess.run(vector + arguments, input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          timeout=GIT_S, check=True)  # fmt: skip
    return done.stdout
