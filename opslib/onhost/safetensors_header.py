"""Reads the header of a safetensors file and says what is wrong with it; never more than the header is read.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors back to back
(https://github.com/huggingface/safetensors#format).
"""

import json
import re
import struct
from typing import Any, Dict, List, Tuple

MAX_HEADER_BYTES = 100_000_000  # what the safetensors library itself accepts
PREFIX_BYTES = 8
LONG_NUMBER = re.compile(rb"[0-9]{21}")
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class HeaderProblem(Exception):  # noqa: N818 - a finding about a file, not a fault of the program
    """What is wrong with a file: a kind that programs compare, and a sentence."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Tensor:
    """One tensor of a header: name, dtype, shape, number of elements and where its bytes lie after the header."""

    __slots__ = ("begin", "dtype", "end", "n_elements", "name", "shape")

    def __init__(self, name: str, dtype: str, shape: List[int], n_elements: int, span: Tuple[int, int]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.n_elements = n_elements
        self.begin, self.end = span


def read_header(path: str, size: int) -> Tuple[List[Tensor], int, int]:
    """The tensors of a file, where their bytes begin, and where the last one ends; raises HeaderProblem or OSError."""
    with open(path, "rb") as file:
        prefix = file.read(PREFIX_BYTES)
        length = header_length(prefix, size)
        raw = file.read(length)
    if len(raw) < length:
        raise HeaderProblem("header-cut", "the file ends within its header")
    tensors = parse_header(raw)
    data_begin = PREFIX_BYTES + length
    return tensors, data_begin, data_begin + max([tensor.end for tensor in tensors] or [0])


def header_length(prefix: bytes, size: int) -> int:
    """The header's length from the first 8 bytes; checked against the file's size before anything is read."""
    if len(prefix) < PREFIX_BYTES:
        raise HeaderProblem("header-cut", "the file has %d bytes, less than a header's length field" % len(prefix))
    length = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER_BYTES:
        raise HeaderProblem("header-length", "the header claims %d bytes; this is no safetensors file" % length)
    if PREFIX_BYTES + length > size:
        raise HeaderProblem("header-cut", "the header needs %d bytes, the file has %d" % (PREFIX_BYTES + length, size))
    return int(length)


def parse_header(raw: bytes) -> List[Tensor]:
    """The tensors that a header's JSON describes, in file order; raises HeaderProblem at the first fault."""
    try:
        parse_int = _bounded_int if LONG_NUMBER.search(raw) else None  # int() of a million digits takes for ever
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_int=parse_int)
    except (ValueError, RecursionError) as error:
        raise HeaderProblem("header-not-json", "the header is not valid JSON: %s" % error) from error
    if not isinstance(header, dict):
        raise HeaderProblem("header-not-json", "the header is JSON, but no object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise HeaderProblem("header-not-json", "__metadata__ is not a table of texts")
    tensors = [_tensor(name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_contiguous(tensors)
    return tensors


def _bounded_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a number of %d digits" % len(digits))
    return int(digits)


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name appears twice")
    return entries


def _tensor(name: str, entry: Any) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise HeaderProblem("header-not-json", "tensor %s lacks dtype, shape or data_offsets" % name) from None
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise HeaderProblem("unknown-dtype", "tensor %s has the unknown dtype %r" % (name, dtype))
    if not isinstance(shape, list) or not all(_is_count(number) for number in [*shape, begin, end]) or begin > end:
        raise HeaderProblem("header-not-json", "tensor %s has a shape or offsets that are no counts" % name)
    n_elements = 0 if 0 in shape else 1
    for number in shape if n_elements else ():
        n_elements *= number
        if n_elements >= 2**63:
            raise HeaderProblem("dtype-shape-mismatch", "tensor %s: a shape of more than 2^63 elements" % name)
    if n_elements * DTYPE_BITS[dtype] != (end - begin) * 8:
        detail = "tensor %s: %s x %s is not the %d bytes of its offsets" % (name, dtype, shape, end - begin)
        raise HeaderProblem("dtype-shape-mismatch", detail)
    return Tensor(name, dtype, shape, n_elements, (begin, end))


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63


def _check_contiguous(tensors: List[Tensor]) -> None:
    position = 0
    before = ""
    for tensor in tensors:
        if tensor.begin < position and tensor.end > tensor.begin:
            raise HeaderProblem("overlapping-offsets", "tensors %s and %s overlap" % (before, tensor.name))
        if tensor.begin > position:
            raise HeaderProblem("offset-gap", "bytes %d to %d belong to no tensor" % (position, tensor.begin))
        position = max(position, tensor.end)
        before = tensor.name
