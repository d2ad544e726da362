"""Writes a checkpoint that looks like a finished download: real headers, index and hub metadata over sparse files."""

import hashlib
import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["minimax-m2-230b-fp8", "tiny"]
Tensor = tuple[str, str, tuple[int, ...], int]  # name, dtype, shape, bytes

_COMMIT = "2a1f0cdaa0ae2d8f2bd0a4c5b2a3f2d3ec6f8b11"
_DOWNLOADED_AT = 1764403200.0  # seconds since the epoch, as huggingface_hub writes it
_FP8_BLOCK = 128
_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


@dataclass(frozen=True)
class Shape:
    """The dimensions that decide a mixture-of-experts checkpoint's tensors."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    expert_inter: int
    vocab: int
    n_shards: int
    max_position_embeddings: int


SHAPES: dict[Kind, Shape] = {
    "minimax-m2-230b-fp8": Shape(62, 3072, 48, 8, 128, 256, 1536, 200064, 125, 196608),
    "tiny": Shape(2, 256, 8, 4, 32, 4, 128, 2048, 3, 4096),
}


def write_checkpoint(directory: Path, kind: Kind = "minimax-m2-230b-fp8") -> int:
    """Write the checkpoint of `kind` into `directory` and return its apparent size in bytes.

    The large kind has MiniMax-M2's published dimensions: 125 sparse shards, 229.9 GB (214 GiB) apparent, about
    20 MB on disk. Every shard's header is valid and its extent equals the file's size; the large kind's tensors are
    zeros, the tiny kind's small numbers.
    `.cache/huggingface/download` carries truthful etags for the small files and the tiny kind's shards. The large
    kind's shards have none, because hashing 230 GB of zeros would take minutes.
    """
    shape = SHAPES[kind]
    directory.mkdir(parents=True, exist_ok=True)
    tensors = list(_tensors(shape))
    total = sum(size for *_, size in tensors)
    weight_map: list[str] = []
    for name, members in _shards(tensors, total, shape.n_shards):
        _write_shard(directory / name, members, has_values=kind == "tiny")
        weight_map += [f'"{tensor}":"{name}"' for tensor, *_ in members]
    small = _small_files(shape)
    small["model.safetensors.index.json"] = (
        f'{{"metadata":{{"total_size":{total}}},"weight_map":{{{",".join(sorted(weight_map))}}}}}'.encode()
    )
    for name, content in small.items():
        (directory / name).write_bytes(content)
    _write_hub_metadata(directory, has_true_shard_etags=kind == "tiny")
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _tensors(shape: Shape) -> Iterator[Tensor]:
    """All tensors in the order in which the published checkpoint stores them."""
    hidden, query = shape.hidden, shape.heads * shape.head_dim
    key = shape.kv_heads * shape.head_dim
    yield _tensor("model.embed_tokens.weight", "BF16", shape.vocab, hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        for expert in range(shape.experts):
            moe = f"{at}block_sparse_moe.experts.{expert}."
            yield from _fp8(moe + "w1", shape.expert_inter, hidden)
            yield from _fp8(moe + "w2", hidden, shape.expert_inter)
            yield from _fp8(moe + "w3", shape.expert_inter, hidden)
        yield _tensor(at + "block_sparse_moe.gate.weight", "F32", shape.experts, hidden)
        yield _tensor(at + "block_sparse_moe.e_score_correction_bias", "F32", shape.experts)
        yield from _fp8(at + "self_attn.q_proj", query, hidden)
        yield from _fp8(at + "self_attn.k_proj", key, hidden)
        yield from _fp8(at + "self_attn.v_proj", key, hidden)
        yield from _fp8(at + "self_attn.o_proj", hidden, query)
        yield _tensor(at + "self_attn.q_norm.weight", "BF16", query)
        yield _tensor(at + "self_attn.k_norm.weight", "BF16", key)
        yield _tensor(at + "input_layernorm.weight", "BF16", hidden)
        yield _tensor(at + "post_attention_layernorm.weight", "BF16", hidden)
    yield _tensor("model.norm.weight", "BF16", hidden)
    yield _tensor("lm_head.weight", "BF16", shape.vocab, hidden)


def _fp8(name: str, rows: int, columns: int) -> Iterator[Tensor]:
    yield (f"{name}.weight", "F8_E4M3", (rows, columns), rows * columns)
    yield _tensor(f"{name}.weight_scale_inv", "F32", -(-rows // _FP8_BLOCK), -(-columns // _FP8_BLOCK))


def _tensor(name: str, dtype: str, *shape: int) -> Tensor:
    size = _BYTES[dtype]
    for length in shape:
        size *= length
    return (name, dtype, shape, size)


def _shards(tensors: list[Tensor], total: int, n_shards: int) -> Iterator[tuple[str, list[Tensor]]]:
    """Cut the tensors, in order, into `n_shards` files of about equal size."""
    members: list[list[Tensor]] = [[] for _ in range(n_shards)]
    written = 0
    for tensor in tensors:
        members[min(n_shards - 1, (written + tensor[3] // 2) * n_shards // total)].append(tensor)
        written += tensor[3]
    for number, inside in enumerate(members, 1):
        yield f"model-{number:05d}-of-{n_shards:05d}.safetensors", inside


def _write_shard(path: Path, tensors: list[Tensor], *, has_values: bool) -> None:
    """An 8-byte length, the JSON header padded to 8 bytes, then the data or a hole of exactly its size."""
    entries, end = ['"__metadata__":{"format":"pt"}'], 0
    for name, dtype, shape, size in tensors:
        dims = ",".join(map(str, shape))
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":[{dims}],"data_offsets":[{end},{end + size}]}}')
        end += size
    header = f"{{{','.join(entries)}}}".encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name, dtype, _, size in tensors if has_values else ():
            file.write(_values(name, dtype, size))
        os.truncate(file.fileno(), 8 + len(header) + end)


def _values(name: str, dtype: str, size: int) -> bytes:
    """Small numbers of a dtype, the same for the same name: the byte that holds the exponent (the last) is fixed."""
    data = bytearray(random.Random(name).randbytes(size))  # noqa: S311
    if dtype == "F8_E4M3":
        return bytes(data).translate(bytes(byte & 0xBF for byte in range(256)))
    width = _BYTES[dtype]
    data[width - 1 :: width] = b"\x3c" * (size // width)
    return bytes(data)


def _small_files(shape: Shape) -> dict[str, bytes]:
    documents: dict[str, object] = {
        "config.json": {
            "architectures": ["MiniMaxM2ForCausalLM"],
            "model_type": "minimax_m2",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.expert_inter,
            "max_position_embeddings": shape.max_position_embeddings,
            "num_attention_heads": shape.heads,
            "num_experts_per_tok": min(8, shape.experts),
            "num_hidden_layers": shape.layers,
            "num_key_value_heads": shape.kv_heads,
            "num_local_experts": shape.experts,
            "quantization_config": {
                "activation_scheme": "dynamic",
                "fmt": "float8_e4m3fn",
                "quant_method": "fp8",
                "weight_block_size": [_FP8_BLOCK, _FP8_BLOCK],
                "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
            },
            "rms_norm_eps": 1e-06,
            "rope_theta": 5000000,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_qk_norm": True,
            "vocab_size": shape.vocab,
        },
        "generation_config.json": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "temperature": 1.0,
            "top_p": 0.95,
            "top_k": 40,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": shape.max_position_embeddings,
        },
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2}, "merges": []},
        },
    }
    files = {name: json.dumps(document, indent=2).encode() + b"\n" for name, document in documents.items()}
    files["chat_template.jinja"] = (
        b"{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}[assistant] "
    )
    return files


def _write_hub_metadata(directory: Path, *, has_true_shard_etags: bool) -> None:
    """One `.metadata` per file: commit, etag, time (huggingface_hub `_local_folder.write_download_metadata`)."""
    download = directory / ".cache" / "huggingface" / "download"
    download.mkdir(parents=True, exist_ok=True)
    (directory / ".cache" / "huggingface" / ".gitignore").write_text("*")
    for path in sorted(directory.iterdir()):
        if not path.is_file():
            continue
        if path.suffix == ".safetensors":
            etag = hashlib.sha256(path.read_bytes()).hexdigest() if has_true_shard_etags else ""
        else:  # small files have git's blob id as their etag
            content = path.read_bytes()
            etag = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        (download / f"{path.name}.metadata").write_text(f"{_COMMIT}\n{etag}\n{_DOWNLOADED_AT}\n")
        os.utime(path, (_DOWNLOADED_AT, _DOWNLOADED_AT))
