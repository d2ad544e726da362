"""Lists a checkpoint directory and reads every safetensors header in it; prints progress and one listing.

Arguments: {"path": directory, "level": "headers" | "digests"}. Gathers only: what it means is judged elsewhere.
"""

import json
import os
import re
import stat
import sys
import time
from typing import Any, Dict, List, Optional

from opslib.onhost.digests import compare_digests, recorded
from opslib.onhost.safetensors_header import HeaderProblem, read_header
from opslib.onhost.weight_index import compare_index, summarize

LEVELS = ("headers", "digests")  # each a superset of the one before
SHOWN_JSON = ("config.json", "generation_config.json", "tokenizer_config.json", "quantize_config.json")
CHECKED_JSON = ("tokenizer.json", "preprocessor_config.json", "processor_config.json", "special_tokens_map.json")
DOWNLOAD_DIR = os.path.join(".cache", "huggingface", "download")
OTHER_LAYOUT = "consolidated"  # Mistral's own layout of the same weights; no index speaks of it
PROGRESS_S = 0.25
LONE_SURROGATE = re.compile(r"(?<!\\ud[89ab][0-9a-f]{2})\\udc[89a-f][0-9a-f]")
MAX_JSON_BYTES = 200_000_000


def emit(event: str, **fields: Any) -> None:
    """One JSON line, flushed; a file name's undecodable bytes become U+FFFD."""
    print(LONE_SURROGATE.sub(r"\\ufffd", json.dumps(dict(fields, event=event))), flush=True)


def list_files(root: str) -> List[Dict[str, Any]]:
    """Every file below `root` (symlinked directories are not entered), with size, blocks and readability."""
    found = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            entry = {"path": os.path.relpath(path, root), "is_symlink": os.path.islink(path)}  # type: Dict[str, Any]
            try:
                status = os.stat(path)
            except OSError:
                entry.update(size=0, allocated=0, is_readable=False, is_dangling=True)
            else:
                entry.update(size=status.st_size, allocated=status.st_blocks * 512, is_dangling=False)
                entry["is_readable"] = stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK)
            found.append(entry)
    return found


def suspicious(path: str, size: int) -> Optional[str]:
    """What a file's first bytes betray: a git-lfs pointer, or an error page saved in its place."""
    try:
        with open(path, "rb") as file:
            start = file.read(200).lstrip().lower()
    except OSError:
        return None
    if start.startswith(b"version https://git-lfs"):
        return "lfs-pointer"
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "html-page"
    if size < 4096 and start.startswith(b'{"error'):
        return "error-page"
    return None


def read_json(path: str) -> Dict[str, Any]:
    """{"content": …} of a JSON file, or {"problem": …}."""
    try:
        if os.path.getsize(path) > MAX_JSON_BYTES:
            return {"problem": "larger than %d bytes" % MAX_JSON_BYTES}
        with open(path, encoding="utf-8") as file:
            return {"content": json.load(file)}
    except (OSError, ValueError, RecursionError) as error:
        return {"problem": str(error)}


def read_companions(root: str, names: List[str]) -> Dict[str, Any]:
    """The small JSON files beside the weights: content of those that matter, validity of the others."""
    companions = {}  # type: Dict[str, Any]
    for name in names:
        if name in SHOWN_JSON + CHECKED_JSON:
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


class Weights:
    """The headers of all safetensors files of a directory, and which file holds which tensor."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.shards = []  # type: List[Dict[str, Any]]
        self.holders = {}  # type: Dict[str, List[str]]

    def add(self, entry: Dict[str, Any]) -> None:
        """Read one file's header."""
        shard = {"path": entry["path"], "size": entry["size"], "problem": None}  # type: Dict[str, Any]
        try:
            tensors, extent = read_header(os.path.join(self.root, entry["path"]), entry["size"])
        except HeaderProblem as problem:
            shard["problem"] = {"kind": problem.kind, "detail": problem.detail}
        except OSError as error:
            shard["problem"] = {"kind": "unreadable", "detail": str(error)}
        else:
            shard.update(summarize(tensors), extent=extent)
            for tensor in () if entry["path"].startswith(OTHER_LAYOUT) else tensors:
                self.holders.setdefault(tensor.name, []).append(entry["path"])
        self.shards.append(shard)

    def compare(self, index_path: str) -> Dict[str, Any]:
        """The index, and where it disagrees with the headers."""
        answer = read_json(os.path.join(self.root, index_path))
        index = answer["content"] if isinstance(answer.get("content"), dict) else {}
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            return {"path": index_path, "problem": answer.get("problem") or "it has no weight_map of file names"}
        readable = [shard["path"] for shard in self.shards if shard["problem"] is None]
        metadata = index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        if isinstance(total, float) and total % 1 == 0:
            total = int(total)
        return {
            "path": index_path,
            "problem": None,
            "total_size": total if isinstance(total, int) else None,
            "n_tensors": len(weight_map),
            "shards": sorted(set(weight_map.values())),
            "differences": compare_index(weight_map, self.holders, readable),
        }


def read_weights(root: str, files: List[Dict[str, Any]]) -> Weights:
    """Read the headers of all top-level safetensors files, reporting progress."""
    weights = Weights(root)
    wanted = [entry for entry in files if entry["path"].endswith(".safetensors") and os.sep not in entry["path"]]
    size = 0
    told_at = 0.0
    for number, entry in enumerate(wanted, 1):
        if entry["is_readable"]:
            weights.add(entry)
        size += entry["size"]
        if time.monotonic() - told_at > PROGRESS_S or number == len(wanted):
            told_at = time.monotonic()
            emit("progress", files=number, n_files=len(wanted), bytes=size)
    return weights


def gather(root: str, level: str) -> Dict[str, Any]:
    """Everything that a level asks of a directory."""
    files = list_files(root)
    names = [entry["path"] for entry in files]
    weights = read_weights(root, files)
    indices = [name for name in names if name.endswith(".safetensors.index.json") and os.sep not in name]
    for entry in files:
        if not entry["path"].startswith(".cache") and entry["is_readable"]:
            entry["suspicion"] = suspicious(os.path.join(root, entry["path"]), entry["size"])
    notes = read_download_metadata(root)
    digests = compare_digests(root, recorded(root, files, notes), emit) if level == "digests" else []
    return {
        "files": files,
        "companions": read_companions(root, names),
        "shards": weights.shards,
        "index": weights.compare(indices[0]) if indices else None,
        "download": notes,
        "digests": digests,
    }


def main(arguments: Dict[str, Any]) -> int:
    """Print progress lines and the listing; exit status 0, 2 for an unknown level."""
    path, level = str(arguments["path"]), str(arguments.get("level", "headers"))
    if level not in LEVELS:
        sys.stderr.write("unknown level %s\n" % level)
        return 2
    started_at = time.monotonic()
    listing = {"path": path, "level": level, "exists": os.path.exists(path), "problem": None}  # type: Dict[str, Any]
    if not os.path.isdir(path):
        listing["problem"] = "not a directory" if listing["exists"] else "no such directory"
    elif not os.access(path, os.R_OK | os.X_OK):
        listing["problem"] = "unreadable"
    else:
        listing.update(gather(os.path.abspath(path), level))
    emit("listing", duration_s=round(time.monotonic() - started_at, 3), **listing)
    return 0
