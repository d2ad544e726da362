"""The headers of all weight files of a directory, which file holds which tensor, and what the indices say of it."""

import os
import re
from typing import Any, Callable, Dict, List

from opslib.onhost.gguf import read_gguf
from opslib.onhost.safetensors_header import HeaderProblem, read_header
from opslib.onhost.verify_files import read_json
from opslib.onhost.weight_index import compare_index, summarize

OTHER_LAYOUT = "consolidated"  # Mistral's own layout of the same weights
INDEX = ".safetensors.index.json"
NUMBERED = re.compile(r"-\d+-of-\d+\.safetensors$")

Tell = Callable[..., None]


def family_of(path: str) -> str:
    """Which set of weights a file belongs to: Mistral's own beside the usual one.

    >>> family_of("consolidated-00001-of-00002.safetensors"), family_of("model-00001-of-00002.safetensors")
    ('consolidated', '')
    """
    return OTHER_LAYOUT if path.startswith(OTHER_LAYOUT) else ""


def is_weights(path: str) -> bool:
    """Whether a path is a top-level file whose header is read."""
    return path.endswith((".safetensors", ".gguf")) and os.sep not in path


class Weights:
    """What the headers say, file after file."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.shards = []  # type: List[Dict[str, Any]]
        self.holders = {}  # type: Dict[str, Dict[str, List[str]]]
        self.header_bytes = 0

    def add(self, entry: Dict[str, Any]) -> None:
        """Read one file's header."""
        path = entry["path"]
        shard = {"path": path, "size": entry["size"], "problem": None}  # type: Dict[str, Any]
        try:
            shard.update(self._read(path, entry["size"]))
            self.header_bytes += shard["data_begin"]
        except HeaderProblem as problem:
            shard["problem"] = {"kind": problem.kind, "detail": problem.detail}
        except OSError as error:
            shard["problem"] = {"kind": "unreadable", "detail": str(error)}
        self.shards.append(shard)

    def _read(self, path: str, size: int) -> Dict[str, Any]:
        full = os.path.join(self.root, path)
        if path.endswith(".gguf"):
            return read_gguf(full)
        tensors, data_begin, extent = read_header(full, size)
        holders = self.holders.setdefault(family_of(path), {})
        for tensor in tensors:
            holders.setdefault(tensor.name, []).append(path)
        return dict(summarize(tensors), data_begin=data_begin, extent=extent)

    def compare(self, index_path: str) -> Dict[str, Any]:
        """One index, and where it disagrees with the headers of its set."""
        answer = read_json(os.path.join(self.root, index_path))
        index = answer["content"] if isinstance(answer.get("content"), dict) else {}
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
            return {"path": index_path, "problem": answer.get("problem") or "it has no weight_map of file names"}
        family = family_of(index_path)
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
            "differences": compare_index(weight_map, self.holders.get(family, {}), readable),
        }

    def repeated(self) -> List[Dict[str, Any]]:
        """Tensors in two numbered files of a set that no index speaks of."""
        found = []
        for holders in self.holders.values():
            numbered = {name: [file for file in files if NUMBERED.search(file)] for name, files in holders.items()}
            numbered = {name: files for name, files in numbered.items() if files}
            found += compare_index({name: files[0] for name, files in numbered.items()}, numbered, ())
        return found


def read_weights(root: str, files: List[Dict[str, Any]], tell: Tell) -> Weights:
    """Read the headers of all top-level weight files, reporting progress."""
    weights = Weights(root)
    wanted = [entry for entry in files if is_weights(entry["path"])]
    total = sum(entry["size"] for entry in wanted)
    size = 0
    for number, entry in enumerate(wanted, 1):
        if entry["is_readable"]:
            weights.add(entry)
        size += entry["size"]
        tell("headers", files=number, n_files=len(wanted), bytes=size, total_bytes=total)
    return weights


def read_indices(weights: Weights, files: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Every index of the directory, compared with the headers."""
    names = [entry["path"] for entry in files if entry["path"].endswith(INDEX) and os.sep not in entry["path"]]
    names = [name for name in names if not re.search(r"\.(fp16|bf16|fp32)\.", name)]  # variants (diffusers)
    return [weights.compare(name) for name in names]
