"""Reads the bytes of tensors, a stated sample or all of them: zero-filled and constant runs, NaN and Inf.

Holes of sparse files are found exactly, without reading them. Memory is bounded by one block.
"""

import errno
import os
import random
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from opslib.onhost.safetensors_header import Tensor
from opslib.onhost.scan_runs import RUN_BYTES, describe_runs, tensors_between
from opslib.onhost.scan_values import LAYOUTS, constant_pages, find_special

SAMPLE_BYTES = 32 * 1024
STRIDE_BYTES = 4 * 1024 * 1024  # one sample somewhere in each: a run of twice that is found with certainty
SMALL_BYTES = 16 * 1024 * 1024  # smaller files are read as a whole
BLOCK_BYTES = 4 * 1024 * 1024
MAX_RUNS = 200
MAX_GROWN = 64 * 1024 * 1024  # how far a sampled run is followed in each direction

Span = Tuple[int, int]


class File:
    """An open weight file: its bytes, where its tensors lie, and which parts of it are holes."""

    def __init__(self, path: str, tensors: Sequence[Tensor], data_begin: int) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.tensors = [tensor for tensor in tensors if tensor.end > tensor.begin]
        self.begin = data_begin
        self.end = min(os.fstat(self.descriptor).st_size, data_begin + max([t.end for t in self.tensors] or [0]))
        self.n_read = 0

    def read(self, begin: int, size: int) -> bytes:
        """Up to `size` bytes at `begin`."""
        data = os.pread(self.descriptor, size, begin)
        self.n_read += len(data)
        return data

    def holes(self) -> List[Span]:
        """The parts without allocated blocks; none where the file system doesn't tell."""
        found = []  # type: List[Span]
        position = self.begin
        try:
            while position < self.end and len(found) < MAX_RUNS:
                begin = os.lseek(self.descriptor, position, os.SEEK_HOLE)
                if begin >= self.end:
                    break
                position = self._next_data(begin)
                if not self.read((begin + position) // 2, 4096).strip(b"\0"):
                    found.append((begin, position))
        except (OSError, AttributeError):
            return []
        return found

    def _next_data(self, position: int) -> int:
        try:
            return min(self.end, os.lseek(self.descriptor, position, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.end
            raise


def scan_file(path: str, tensors: Sequence[Tensor], data_begin: int, *, is_full: bool, seed: int) -> Iterator[Any]:
    """Numbers of bytes as they are covered, then one dict: what was found in the file."""
    file = File(path, tensors, data_begin)
    try:
        holes = file.holes()
        zeros, constants = list(holes), []  # type: List[Span], List[Span]
        specials = {}  # type: Dict[str, Dict[str, Any]]
        at = file.begin
        for begin, size in _without(holes, _pieces(file, is_full, seed)):
            yield max(0, begin - at)
            at = max(at, begin)
            data = file.read(begin, size)
            for tensor, first, last in tensors_between(file, begin, begin + len(data)):
                piece = data[first - begin : last - begin]
                _note_special(specials, file, tensor, first, piece)
                for low, high in constant_pages(piece):
                    where = zeros if piece[low] == 0 and piece[low : low + 8] == bytes(8) else constants
                    _join(where, first + low, first + high)
        yield max(0, file.end - at)
        runs = describe_runs(file, _grown(file, zeros, is_full), constants, holes)
        yield {"runs": runs[:MAX_RUNS], "specials": sorted(specials.values(), key=str), "n_read": file.n_read}
    finally:
        os.close(file.descriptor)


def _pieces(file: File, is_full: bool, seed: int) -> Iterator[Span]:
    """(begin, size) of what is read: everything in blocks, or a block somewhere in each stride and both ends."""
    if is_full or file.end - file.begin <= SMALL_BYTES:
        for begin in range(file.begin, file.end, BLOCK_BYTES):
            yield begin, min(BLOCK_BYTES, file.end - begin)
        return
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    yield file.begin, SAMPLE_BYTES
    for stratum in range(file.begin, file.end - STRIDE_BYTES, STRIDE_BYTES):
        yield stratum + chance.randrange(0, STRIDE_BYTES - SAMPLE_BYTES + 1, 4096), SAMPLE_BYTES
    yield file.end - SAMPLE_BYTES, SAMPLE_BYTES


def _without(holes: Sequence[Span], pieces: Iterator[Span]) -> Iterator[Span]:
    """The pieces, less what lies in holes."""
    for begin, size in pieces:
        at, end = begin, begin + size
        for low, high in holes:
            if high <= at or low >= end:
                continue
            if low > at:
                yield at, low - at
            at = max(at, high)
        if at < end:
            yield at, end - at


def _note_special(found: Dict[str, Dict[str, Any]], file: File, tensor: Tensor, first: int, piece: bytes) -> None:
    known = found.get(tensor.name)
    if tensor.dtype not in LAYOUTS or (known and known["kind"] == "nan") or (not known and len(found) >= MAX_RUNS):
        return
    width = LAYOUTS[tensor.dtype].width
    into = first - file.begin - tensor.begin
    skipped = -into % width
    special = find_special(tensor.dtype, piece[skipped:])
    if special and (known is None or special[0] == "nan"):
        element = (into + skipped) // width + special[1]
        found[tensor.name] = {"kind": special[0], "tensor": tensor.name, "dtype": tensor.dtype, "element": element}


def _join(runs: List[Span], begin: int, end: int) -> None:
    if runs and runs[-1][1] == begin:
        runs[-1] = (runs[-1][0], end)
    else:
        runs.append((begin, end))


def _grown(file: File, runs: Sequence[Span], is_full: bool) -> List[Span]:
    """Runs of zeros followed to their exact ends; those that meet are one."""
    most = RUN_BYTES if is_full else MAX_GROWN
    joined = _merged(runs)[:MAX_RUNS]
    grown = []  # type: List[Span]
    for number, (begin, end) in enumerate(joined):
        least = grown[-1][1] if grown else file.begin
        last = joined[number + 1][0] if number + 1 < len(joined) else file.end
        begin = _first_zero(file, begin, max(least, begin - most))  # noqa: PLW2901
        grown.append((begin, _end_of_zeros(file, end, min(last, end + most))))
    return _merged(grown)


def _merged(runs: Sequence[Span]) -> List[Span]:
    merged = []  # type: List[Span]
    for begin, end in sorted(runs):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _first_zero(file: File, begin: int, least: int) -> int:
    while begin > least:
        size = min(BLOCK_BYTES // 4, begin - least)
        data = file.read(begin - size, size)
        n_zeros = len(data) - len(data.rstrip(b"\0"))
        begin -= n_zeros
        if n_zeros < size:
            break
    return begin


def _end_of_zeros(file: File, end: int, most: int) -> int:
    while end < most:
        data = file.read(end, min(BLOCK_BYTES // 4, most - end))
        n_zeros = len(data) - len(data.lstrip(b"\0"))
        end += n_zeros
        if n_zeros < len(data) or not data:
            break
    return end
