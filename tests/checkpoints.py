"""Small checkpoints for tests: real safetensors files written by hand."""

import json
import os
import struct
from pathlib import Path

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I64": 8}


def safetensors(tensors, *, metadata=None):
    """A file's bytes for {name: (dtype, shape)}; all elements are zero."""
    header, position = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for number in shape:
            size *= number
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(position)


def with_header(header, data=b""):
    """A file's bytes for a header given as text or object."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def write_model(directory: Path, n_shards: int = 3) -> Path:
    """A whole small checkpoint: shards, index, config, tokenizer and the notes of `hf download`."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map, total = {}, 0
    for number in range(1, n_shards + 1):
        name = f"model-{number:05}-of-{n_shards:05}.safetensors"
        tensors = {
            f"model.layers.{number}.a.weight": ("BF16", (4, 8)),
            f"model.layers.{number}.norm.weight": ("F32", (8,)),
        }
        (directory / name).write_bytes(safetensors(tensors, metadata={"format": "pt"}))
        weight_map |= dict.fromkeys(tensors, name)
        total += 4 * 8 * 2 + 8 * 4
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    notes = directory / ".cache/huggingface/download"
    notes.mkdir(parents=True, exist_ok=True)
    (notes / "config.json.metadata").write_text("abc123\netag\n1764403200.0\n")
    (notes / "config.json.lock").touch()
    for path in directory.iterdir():
        os.utime(path, (1764403200, 1764403200))
    return directory
