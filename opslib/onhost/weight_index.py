"""Compares what the index says about tensors with what the headers say, and sums tensors up."""

import re
from typing import Any, Dict, Iterable, List

from opslib.onhost.safetensors_header import DTYPE_BITS, Tensor

NAMES_SHOWN = 20
# How vLLM's layers treat a tensor under tensor parallelism, by its name; the first match counts.
PARTS = (
    ("vision", re.compile(r"(^|\.)(visual|vision\w*|image_newline|multi_modal_projector|mm_projector)(\.|$)")),
    ("embedding", re.compile(r"(embed_tokens|word_embeddings|wte|tok_embeddings)\.")),
    ("lm_head", re.compile(r"(^|\.)(lm_head|output)\.weight$")),
    ("norm", re.compile(r"norm|layernorm|ln_")),
    ("router", re.compile(r"\.(gate|router|e_score_correction_bias)(\.|$)")),
    ("latent", re.compile(r"\.(q_a_proj|kv_a_proj\w*)\.")),
)


def part_of(name: str) -> str:
    """Which part of the model a tensor belongs to by its name: "expert", one of PARTS, or "other"."""
    if ".experts." in name:  # nearly all tensors of a mixture of experts
        return "expert"
    for part, pattern in PARTS:
        if pattern.search(name):
            return part
    return "other"


def summarize(tensors: Iterable[Tensor]) -> Dict[str, Any]:
    """Sums over one file's tensors: how many, parameters and bytes by dtype, bytes by part."""
    parameters = {}  # type: Dict[str, int]
    dtype_bytes = {}  # type: Dict[str, int]
    part_bytes = {}  # type: Dict[str, int]
    n_tensors = 0
    for tensor in tensors:
        n_tensors += 1
        size = tensor.n_elements * DTYPE_BITS[tensor.dtype] // 8
        parameters[tensor.dtype] = parameters.get(tensor.dtype, 0) + tensor.n_elements
        dtype_bytes[tensor.dtype] = dtype_bytes.get(tensor.dtype, 0) + size
        part = part_of(tensor.name)
        part_bytes[part] = part_bytes.get(part, 0) + size
    return {"n_tensors": n_tensors, "parameters": parameters, "dtype_bytes": dtype_bytes, "part_bytes": part_bytes}


def compare_index(
    weight_map: Dict[str, str], holders: Dict[str, List[str]], readable: Iterable[str]
) -> List[Dict[str, Any]]:
    """Where index and headers disagree, both ways: `holders` names the files that hold each tensor.

    Only files in `readable` can testify; what should lie in others is not held against the index. A file that the
    index doesn't name is not read by the engine, so what it holds counts neither as double nor as unnamed.
    """
    trusted, named = set(readable), set(weight_map.values())
    found = {}  # type: Dict[Any, List[str]]
    for name, shard in weight_map.items():
        files = holders.get(name, [])
        if shard in trusted and shard not in files:
            kind = "tensor-elsewhere" if files else "tensor-missing"
            found.setdefault((kind, shard, " ".join(sorted(files))), []).append(name)
        for file in files:
            if file != shard and file in named and shard in files:
                found.setdefault(("tensor-twice", file, shard), []).append(name)
    for name, files in holders.items():
        if name not in weight_map and files[0] in named:
            found.setdefault(("tensor-unnamed", files[0], ""), []).append(name)
    return [
        {"kind": kind, "path": path, "other": other, "count": len(names), "names": sorted(names)[:NAMES_SHOWN]}
        for (kind, path, other), names in sorted(found.items())
    ]
