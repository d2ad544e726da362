"""What the stand-in engine reads of a checkpoint: config, index, and the header of every shard."""

from __future__ import annotations

import json
import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

_ENDS = re.compile(rb'"data_offsets":\s*\[\s*\d+\s*,\s*(\d+)\s*\]')
_MAX_HEADER_BYTES = 100_000_000


class Checkpoint(NamedTuple):
    """The config, the shards in order, and the first fault as (kind, message, index of the shard)."""

    config: Dict[str, Any]
    shards: List[str]
    total_bytes: int
    fault: Optional[Tuple[str, str, int]]


def read_config(directory: str) -> Optional[Dict[str, Any]]:
    """config.json, or None where there is none."""
    try:
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            config: Dict[str, Any] = json.load(file)
    except OSError:
        return None
    return config


def read_checkpoint(directory: str, config: Dict[str, Any]) -> Checkpoint:
    """Everything that decides whether the weights load (vllm/model_executor/model_loader/weight_utils.py)."""
    index = os.path.join(directory, "model.safetensors.index.json")
    present = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    if not present:
        return Checkpoint(config, [], 0, ("RuntimeError", "Cannot find any model weights with `%s`" % directory, 0))
    named = present
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            named = sorted(set(json.load(file)["weight_map"].values()))
    missing = [name for name in named if name not in present]
    if missing:
        paths = ", ".join("'%s'" % os.path.join(directory, name) for name in missing)
        message = "Weight files referenced in index but missing: {%s}" % paths
        return Checkpoint(config, named, 0, ("FileNotFoundError", message, -1))
    fault = None
    total = 0
    for number, name in enumerate(named):
        reason, size = shard_fault(os.path.join(directory, name))
        total += size
        if reason and fault is None:
            message = "Error while deserializing header: " + reason
            fault = ("safetensors_rust.SafetensorError", message, number)
    return Checkpoint(config, named, total, fault)


def shard_fault(path: str) -> Tuple[str, int]:
    """What the safetensors library says about a shard's header ('' where it is whole), and the file's size."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            return "header too small", size
        length = struct.unpack("<Q", prefix)[0]
        if length > _MAX_HEADER_BYTES:
            return "header too large", size
        if 8 + length > size:
            return "invalid header length", size
        header = file.read(length)
    if not header.startswith(b"{"):
        return "invalid header", size
    extent = max((int(end) for end in _ENDS.findall(header)), default=0)
    if 8 + length + extent != size:
        return "incomplete metadata, file not fully covered", size
    return "", size
