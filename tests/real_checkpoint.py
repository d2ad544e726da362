"""Small real checkpoints in the layouts that tools leave behind; the safetensors library itself writes the weights."""

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize

COMMIT = "1f" * 20
DOWNLOADED_AT = 1764403200.0
REPOSITORY = "acme/tiny-1b"
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "float64": 8, "complex64": 8}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "auto_map": {"AutoModelForCausalLM": "modeling_tiny.TinyForCausalLM", "AutoConfig": "other/repo--conf.Tiny"},
}
SMALL = {
    "config.json": json.dumps(CONFIG),
    "generation_config.json": '{"temperature": 1.0}',
    "tokenizer.json": '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
    "tokenizer_config.json": '{"chat_template": "{{ messages }}"}',
    "modeling_tiny.py": "class TinyForCausalLM: ...\n",
    "README.md": "# tiny\n",
}


def values(dtype, shape, seed=0):
    """Raw bytes of plausible weights."""
    chance = np.random.default_rng(seed)
    n = int(np.prod(shape, dtype=np.int64))
    normal = (chance.standard_normal(n) * 0.02).astype(np.float32)
    if dtype == "bfloat16":
        return (normal.view(np.uint32) >> 16).astype("<u2").tobytes()
    if dtype in {"float16", "float32", "float64", "complex64"}:
        return normal.astype(np.dtype(dtype)).tobytes()
    if dtype in {"int64", "int32"}:
        return chance.integers(-1000, 1000, n).astype(np.dtype(dtype)).tobytes()
    return chance.integers(0, 0x78, n, dtype=np.uint8).tobytes()


def safetensors_bytes(tensors, metadata=None):
    """What the real library writes for {name: (dtype, shape)} or {name: (dtype, shape, raw bytes)}."""
    buffers, specs = [], {}
    for seed, (name, (dtype, shape, *raw)) in enumerate(tensors.items()):
        data = np.frombuffer(raw[0] if raw else values(dtype, shape, seed) or b"", dtype=np.uint8)
        buffers.append(data)
        size = WIDTHS.get(dtype, 1) * int(np.prod(shape, dtype=np.int64))
        specs[name] = TensorSpec(dtype=dtype, shape=list(shape), data_ptr=data.ctypes.data, data_len=size)
    return bytes(serialize(specs, metadata=metadata))


def shard_tensors(number):
    """The tensors of one shard of the small model."""
    at = f"model.layers.{number}."
    return {
        at + "input_layernorm.weight": ("float32", (256,)),
        at + "self_attn.q_proj.weight": ("bfloat16", (256, 256)),
        at + "mlp.up_proj.weight": ("bfloat16", (512, 256)),
        at + "mlp.experts.0.w1.weight": ("float8_e4m3fn", (256, 256)),
    }


def model_files(n_shards=3):
    """Every file of the small model as {name: bytes}."""
    files, weight_map, total = {name: text.encode() for name, text in SMALL.items()}, {}, 0
    for number in range(1, n_shards + 1):
        name = f"model-{number:05}-of-{n_shards:05}.safetensors"
        tensors = shard_tensors(number)
        tensors = {k: (d, s, values(d, s, 10 * number + i)) for i, (k, (d, s)) in enumerate(tensors.items())}
        files[name] = safetensors_bytes(tensors, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(len(raw) for *_, raw in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files


def git_blob(content):
    """Git's id of a file, which small files have as their etag."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag_of(name, content):
    """The etag that the hub gives: SHA-256 for files in git-lfs, else git's blob id."""
    is_lfs = name.endswith((".safetensors", ".gguf", ".bin"))
    return hashlib.sha256(content).hexdigest() if is_lfs else git_blob(content)


def write_plain(directory, files):
    """Just the files, as a copy leaves them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def write_local_dir(directory, files, commit=COMMIT):
    """As `hf download --local-dir` leaves them: huggingface_hub/_local_folder.py."""
    write_plain(directory, files)
    notes = directory / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (directory / ".cache/huggingface/.gitignore").write_text("*")
    for name, content in files.items():
        (notes / f"{name}.metadata").write_text(f"{commit}\n{etag_of(name, content)}\n{DOWNLOADED_AT}\n")
        (notes / f"{name}.lock").touch()
        os.utime(directory / name, (DOWNLOADED_AT, DOWNLOADED_AT))
    return directory


def write_hub_cache(directory, files, commit=COMMIT):
    """As the hub cache holds them: blobs named by etag, snapshots of symlinks (huggingface.co/docs/huggingface_hub/guides/manage-cache)."""
    repository = directory / f"models--{REPOSITORY.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    for name, content in files.items():
        blob = repository / "blobs" / etag_of(name, content)
        blob.write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


def write_modelscope(directory, files):
    """As `modelscope download --local_dir` leaves them."""
    write_plain(directory, files)
    (directory / ".msc").write_bytes(b"\x80\x03]q\x00.")
    (directory / ".mv").write_text("Revision:master,CreatedAt:1764403200")
    return directory


def gguf_bytes(tensors, pairs=(), alignment=32):
    """A GGUF file (version 3) of F32 tensors {name: n elements} and (key, type, value) pairs."""

    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    codes = {"u16": (2, "<H"), "i32": (5, "<i"), "u32": (4, "<I")}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, kind, value in pairs:
        if kind == "text":
            head += text(key) + struct.pack("<I", 8) + text(value)
        elif kind == "texts":
            head += text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        else:
            code, form = codes[kind]
            head += text(key) + struct.pack("<I", code) + struct.pack(form, value)
    offset, data = 0, b""
    for number, (name, n) in enumerate(tensors.items()):
        head += text(name) + struct.pack("<IQIQ", 1, n, 0, offset)
        raw = values("float32", (n,), number)
        raw += bytes(-len(raw) % alignment)
        data += raw
        offset += len(raw)
    return head + bytes(-len(head) % alignment) + data


def gguf_files(n_parts=3):
    """A split GGUF set, as llama-gguf-split writes it."""
    pairs = [("general.architecture", "text", "llama"), ("tokenizer.ggml.tokens", "texts", ["a", "b"])]
    files = {}
    for number in range(n_parts):
        split = [
            ("split.no", "u16", number),
            ("split.count", "u16", n_parts),
            ("split.tensors.count", "i32", 2 * n_parts),
        ]
        tensors = {f"blk.{number}.a.weight": 1024, f"blk.{number}.b.weight": 512}
        files[f"tiny-{number + 1:05}-of-{n_parts:05}.gguf"] = gguf_bytes(
            tensors, [*(pairs if number == 0 else ()), *split]
        )
    return files


def write_model_in(layout: str, directory: Path) -> Path:
    """The small model in one of the layouts; the directory that an engine is given."""
    if layout == "gguf":
        return write_plain(directory, gguf_files())
    writers = {
        "plain": write_plain,
        "local-dir": write_local_dir,
        "hub-cache": write_hub_cache,
        "modelscope": write_modelscope,
    }
    return writers[layout](directory, model_files())
