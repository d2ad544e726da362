"""Which runs of one repeated value mean something: by the tensors that they touch."""

import re
from bisect import bisect_right
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from opslib.onhost.safetensors_header import Tensor
from opslib.onhost.weight_index import part_of

RUN_BYTES = 64 * 1024  # a shorter run within one tensor may be chance
TAIL_BYTES = 256  # at the end of the file a much shorter one is none
LEAST_BYTES = 256  # smaller tensors may well be constant
NAMES_SHOWN = 5
# Weights that training or quantization may leave zero or constant; and whatever has one dimension (biases, norms).
MAY_BE_CONSTANT = re.compile(
    r"bias|norm|scale|zero|g_idx|mask|inv_freq|rotary|position|running_|token_type|lora_|_amax|sinks|\.(gate|router)\."
)
WEIGHT_DTYPES = frozenset(
    ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "U8", "I8", "I32")
)
PADDED = ("embedding", "lm_head")  # rows of a vocabulary that was rounded up


def tensors_between(file: Any, begin: int, end: int) -> Iterator[Tuple[Tensor, int, int]]:
    """The tensors that bytes `begin` to `end` of the file touch, each with its part of them."""
    starts = getattr(file, "starts", None)
    if starts is None:
        starts = file.starts = [file.begin + tensor.begin for tensor in file.tensors]
    for number in range(max(0, bisect_right(starts, begin) - 1), len(starts)):
        if starts[number] >= end:
            break
        tensor = file.tensors[number]
        first, last = max(begin, starts[number]), min(end, file.begin + tensor.end)
        if first < last:
            yield tensor, first, last


def is_suspect(tensor: Tensor) -> bool:
    """Whether a tensor of this name, dtype and shape should not hold one repeated value."""
    if len(tensor.shape) < 2 or tensor.dtype not in WEIGHT_DTYPES or tensor.end - tensor.begin < LEAST_BYTES:
        return False
    return not MAY_BE_CONSTANT.search(tensor.name)


def describe_runs(
    file: Any,
    zeros: Sequence[Tuple[int, int]],
    constants: Sequence[Tuple[int, int]],
    holes: Sequence[Tuple[int, int]] = (),
) -> List[Dict[str, Any]]:
    """The runs that touch suspect tensors and are no chance and no padding."""
    found = [
        _described(file, "hole" if any(low < end and begin < high for low, high in holes) else "zero", begin, end)
        for begin, end in zeros
    ]
    found += [_described(file, "constant", begin, end) for begin, end in constants if end - begin >= RUN_BYTES]
    return [run for run in found if run]


def _described(file: Any, kind: str, begin: int, end: int) -> Dict[str, Any]:
    touched = list(tensors_between(file, begin, end))
    suspects = [(tensor, last - first) for tensor, first, last in touched if is_suspect(tensor)]
    whole = [tensor.name for tensor, size in suspects if size == tensor.end - tensor.begin]
    is_tail = end == file.end and end - begin >= TAIL_BYTES
    if not suspects or not (whole or is_tail or end - begin >= RUN_BYTES):
        return {}
    is_rows = not whole and len(touched) == 1 and _are_rows(file, touched[0][0], begin, end)
    if (
        is_rows
        and part_of(touched[0][0].name) in PADDED
        and (end - begin) * 8 <= touched[0][0].end - touched[0][0].begin
    ):
        return {}
    names = whole or [tensor.name for tensor, _ in suspects]
    return {
        "kind": kind,
        "begin": begin,
        "end": end,
        "is_tail": is_tail,
        "is_rows": is_rows,
        "n_whole": len(whole),
        "n_tensors": len(suspects),
        "names": names[:NAMES_SHOWN],
    }


def _are_rows(file: Any, tensor: Tensor, begin: int, end: int) -> bool:
    row = (tensor.end - tensor.begin) // tensor.shape[0]
    into = begin - file.begin - tensor.begin
    return row > 0 and into % row == 0 and (end - begin) % row == 0
