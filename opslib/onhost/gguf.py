"""Reads the header of a GGUF file: which tensors it holds, where they end, and which part of a split set it is.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import io
import os
import struct
from typing import Any, BinaryIO, Dict

from opslib.onhost.safetensors_header import HeaderProblem

MAX_NAME = 65_535
MAX_TEXT = 64_000_000
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
# ggml_type -> name, elements of a block, bytes of a block (ggml/src/ggml.c, type_traits)
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip


def read_gguf(path: str) -> Dict[str, Any]:
    """Extent, tensors and split of a GGUF file; raises HeaderProblem or OSError. Only its header is read."""
    with open(path, "rb") as file:
        return _Reader(file, os.fstat(file.fileno()).st_size).whole()


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size

    def whole(self) -> Dict[str, Any]:
        magic = self.file.read(4)
        if magic != b"GGUF":
            raise HeaderProblem("gguf-magic", "it begins with %r, not with GGUF" % magic)
        version = self.one("I")
        if version not in (2, 3):
            raise HeaderProblem("gguf-version", "GGUF version %d is not known (big-endian, or damaged)" % version)
        n_tensors, n_pairs = self.one("Q"), self.one("Q")
        for count, least in ((n_tensors, 24), (n_pairs, 13)):
            if count * least > self.size:
                raise HeaderProblem("header-length", "the header counts %d entries; the file is too small" % count)
        pairs = {}  # type: Dict[str, Any]
        for _ in range(n_pairs):
            key = self.text(MAX_NAME)
            value = self.value(self.one("I"))
            if key.startswith(("general.", "split.")):
                pairs[key] = value
        return dict(self.tensors(n_tensors, pairs), version=version, split=_split(pairs))

    def tensors(self, n_tensors: int, pairs: Dict[str, Any]) -> Dict[str, Any]:
        parameters = {}  # type: Dict[str, int]
        sizes = {}  # type: Dict[str, int]
        end = 0
        unknown = ""
        for _ in range(n_tensors):
            name = self.text(MAX_NAME)
            n_dimensions = self.one("I")
            if n_dimensions > 8:
                raise HeaderProblem("header-not-json", "tensor %s has %d dimensions" % (name, n_dimensions))
            n_elements = 1
            for _ in range(n_dimensions):
                n_elements *= self.one("Q")
            kind, offset = self.one("I"), self.one("Q")
            if kind not in TYPES:
                unknown = "tensor %s has the unknown type %d" % (name, kind)
                continue
            label, per_block, block_bytes = TYPES[kind]
            size = -(-n_elements // per_block) * block_bytes
            parameters[label] = parameters.get(label, 0) + n_elements
            sizes[label] = sizes.get(label, 0) + size
            end = max(end, offset + size)
        if unknown and not parameters:
            raise HeaderProblem("unknown-dtype", unknown)
        alignment = pairs.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise HeaderProblem("header-not-json", "general.alignment is %r" % (alignment,))
        begin = -(-self.file.tell() // alignment) * alignment
        return {
            "n_tensors": n_tensors,
            "parameters": parameters,
            "dtype_bytes": sizes,
            "data_begin": begin,
            "extent": begin + end if n_tensors else self.file.tell(),
        }

    def take(self, size: int) -> bytes:
        raw = self.file.read(size) if size <= self.size else b""
        if len(raw) < size:
            raise HeaderProblem("header-cut", "the file ends within its header")
        return raw

    def one(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self, longest: int) -> str:
        length = self.one("Q")
        if length > min(longest, self.size):
            raise HeaderProblem("header-length", "a text of %d bytes in the header" % length)
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.one(SCALARS[kind])
        if kind == TEXT:
            return self.text(MAX_TEXT)
        if kind != ARRAY or depth > 4:
            raise HeaderProblem("header-not-json", "a value of the unknown type %d" % kind)
        inner, count = self.one("I"), self.one("Q")
        if inner in SCALARS:
            self.skip(count * struct.calcsize("<" + SCALARS[inner]))
        elif count * 8 > self.size:
            raise HeaderProblem("header-length", "an array of %d values" % count)
        else:
            for _ in range(count):
                if inner == TEXT:
                    self.skip(self.one("Q"))
                else:
                    self.value(inner, depth + 1)
        return None  # no array is needed for anything here

    def skip(self, size: int) -> None:
        if self.file.tell() + size > self.size:
            raise HeaderProblem("header-cut", "the file ends within its header")
        self.file.seek(size, io.SEEK_CUR)


def _split(pairs: Dict[str, Any]) -> Any:
    """Which part of how many a file says it is (`split.no` counts from 0), and how many tensors the set has."""
    number, count = pairs.get("split.no"), pairs.get("split.count")
    if not isinstance(number, int) or not isinstance(count, int) or count < 2:
        return None
    return {"number": number + 1, "count": count, "n_tensors": pairs.get("split.tensors.count")}
