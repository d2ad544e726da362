"""What lies in a checkpoint directory: every file with what the file system says, and what its first bytes betray."""

import json
import os
import re
import stat
from typing import Any, Callable, Dict, List, Optional, Tuple

SHOWN_JSON = (
    "config.json",
    "params.json",
    "generation_config.json",
    "tokenizer_config.json",
    "quantize_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "adapter_config.json",
)
CHECKED_JSON = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "tekken.json")
DOWNLOAD_DIR = os.path.join(".cache", "huggingface", "download")
OWN_FOLDERS = (".git",)  # a clone's own store: it holds everything a second time
MARKUP = (".html", ".htm", ".xml", ".svg", ".md")
MAX_JSON_BYTES = 200_000_000

MayRead = Callable[[str, os.stat_result], bool]


def resolve_root(path: str) -> Tuple[str, Optional[str]]:
    """The snapshot that a hub cache's `models--ORG--NAME` directory stands for, and its commit; others as they are."""
    above, name = os.path.split(path.rstrip("/"))
    if os.path.basename(above) == "snapshots" and re.fullmatch("[0-9a-f]{40}", name):
        return path, name
    snapshots = os.path.join(path, "snapshots")
    if not os.path.basename(path.rstrip("/")).startswith("models--") or not os.path.isdir(snapshots):
        return path, None
    try:
        with open(os.path.join(path, "refs", "main"), encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, ValueError):
        commit = ""
    names = sorted(os.listdir(snapshots))
    if commit not in names:
        commit = names[0] if len(names) == 1 else ""
    return (os.path.join(snapshots, commit), commit) if commit else (path, None)


def reader_for(user: Optional[str]) -> MayRead:
    """Whether a file may be read by this login, or by the named user (mode bits only; access lists are not seen)."""
    if not user:
        return lambda path, _: os.access(path, os.R_OK)
    import pwd  # noqa: PLC0415 - absent where there are no users

    known = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, known.pw_gid))
    ways = {}  # type: Dict[str, bool]

    def has(status: os.stat_result, bit: int) -> bool:
        shift = 6 if status.st_uid == known.pw_uid else 3 if status.st_gid in groups else 0
        return known.pw_uid == 0 or bool(status.st_mode >> shift & bit)

    def may_pass(folder: str) -> bool:
        if folder not in ways:
            above = os.path.dirname(folder)
            ways[folder] = has(os.stat(folder), 1) and (above == folder or may_pass(above))
        return ways[folder]

    def may_read(path: str, status: os.stat_result) -> bool:
        try:
            return has(status, 4) and may_pass(os.path.dirname(os.path.abspath(path)))
        except OSError:
            return False

    return may_read


def list_files(root: str, may_read: MayRead) -> List[Dict[str, Any]]:
    """Every file below `root` (symlinked directories are not entered), and folders that could not be listed."""
    found = []  # type: List[Dict[str, Any]]

    def not_listed(error: OSError) -> None:
        path = os.path.relpath(error.filename or root, root)
        found.append({"path": path, "size": 0, "allocated": 0, "is_symlink": False, "is_dangling": False})
        found[-1]["is_readable"] = False

    for folder, folders, names in os.walk(root, onerror=not_listed):
        folders[:] = sorted(name for name in folders if name not in OWN_FOLDERS)
        for name in sorted(names):
            path = os.path.join(folder, name)
            found.append(dict(_entry(path, may_read), path=os.path.relpath(path, root)))
    return found


def _entry(path: str, may_read: MayRead) -> Dict[str, Any]:
    entry = {"is_symlink": os.path.islink(path), "is_dangling": False}  # type: Dict[str, Any]
    try:
        status = os.stat(path)
    except OSError:  # its target is gone, or it leads to itself
        return dict(entry, size=0, allocated=0, is_readable=False, is_dangling=True)
    entry.update(size=status.st_size, allocated=status.st_blocks * 512, mtime=status.st_mtime)
    entry["is_regular"] = stat.S_ISREG(status.st_mode)
    entry["is_readable"] = entry["is_regular"] and may_read(path, status)
    return entry


def unfinished_blobs(root: str) -> List[Dict[str, Any]]:
    """What an unfinished download left among a hub cache's blobs, beside the snapshot."""
    repository, snapshots = os.path.split(os.path.dirname(root))
    blobs = os.path.join(repository, "blobs")
    if snapshots != "snapshots" or not os.path.isdir(blobs):
        return []
    names = [name for name in sorted(os.listdir(blobs)) if name.endswith(".incomplete")]
    paths = [os.path.join(blobs, name) for name in names]
    return [dict(_entry(path, lambda *_: True), path=os.path.relpath(path, root)) for path in paths]


def suspicious(path: str, size: int) -> Optional[Dict[str, Any]]:
    """What a file's first bytes betray: a git-lfs pointer (with what it points to), or an error page in its place."""
    try:
        with open(path, "rb") as file:
            raw = file.read(300)
    except OSError:
        return None
    start = raw.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return dict(parse_pointer(raw), kind="lfs-pointer")
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")) and not path.endswith(MARKUP):
        return {"kind": "html-page"}
    if size < 4096 and start.startswith((b'{"error', b'{"detail', b'{"message')):
        return {"kind": "error-page"}
    return None


def parse_pointer(raw: bytes) -> Dict[str, Any]:
    """The digest and size that a git-lfs pointer names (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""
    told = {}  # type: Dict[str, Any]
    for line in raw.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        if key == "oid" and value.startswith("sha256:"):
            told["digest"] = value[len("sha256:") :].strip()
        elif key == "size" and value.strip().isdigit():
            told["size"] = int(value)
    return told


def read_json(path: str) -> Dict[str, Any]:
    """{"content": …} of a JSON file, or {"problem": …}."""
    try:
        if os.path.getsize(path) > MAX_JSON_BYTES:
            return {"problem": "larger than %d bytes" % MAX_JSON_BYTES}
        with open(path, encoding="utf-8") as file:
            return {"content": json.load(file)}
    except (OSError, ValueError, RecursionError) as error:
        return {"problem": str(error)}


def read_companions(root: str, files: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The small JSON files beside the weights: content of those that matter, validity of the others."""
    companions = {}  # type: Dict[str, Any]
    for entry in files:
        name = entry["path"]
        if name in SHOWN_JSON + CHECKED_JSON and entry["is_readable"]:
            answer = read_json(os.path.join(root, name))
            companions[name] = answer if name in SHOWN_JSON else {"problem": answer.get("problem")}
    return companions


def read_download_metadata(root: str) -> List[Dict[str, Any]]:
    """What `hf download --local-dir` noted per file: commit, etag and when."""
    notes = []
    for folder, _, names in os.walk(os.path.join(root, DOWNLOAD_DIR)):
        for name in sorted(names):
            if name.endswith(".metadata"):
                path = os.path.join(folder, name)
                try:
                    with open(path, encoding="utf-8", errors="replace") as file:
                        lines = [*file.read(4096).splitlines(), "", "", ""]
                except OSError:
                    continue
                of = os.path.relpath(path, os.path.join(root, DOWNLOAD_DIR))[: -len(".metadata")]
                notes.append({"path": of, "commit": lines[0], "etag": lines[1], "noted_at": lines[2]})
    return notes
