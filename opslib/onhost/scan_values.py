"""What is wrong with a piece of a tensor's raw bytes: values that are not numbers, and runs of one repeated value.

Numbers are never decoded one by one: the bytes that hold the exponents are cut out and searched as a whole.
"""

import re
from typing import List, NamedTuple, Optional, Tuple

PAGE = 4096
PERIOD = 8  # a value of any dtype repeats within eight bytes


class Layout(NamedTuple):
    """Where a dtype's exponent lies: bytes of an element, which byte is the highest, and how specials look."""

    width: int
    high: bytes  # the highest bytes that a special value may have
    exact: Optional[Tuple[int, int]]  # (mask, value) that the byte below must have as well; None: the highest decides
    mantissa_bits: int  # of the highest byte, where it decides alone


SEVEN_F = b"\x7f\xff"
E5 = b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"
# Bit layouts: IEEE 754; bfloat16 is the upper half of a float32; OCP 8-bit Floating Point Specification (OFP8) 1.0.
LAYOUTS = {
    "BF16": Layout(2, SEVEN_F, (0x80, 0x80), 0),
    "F16": Layout(2, E5, None, 2),
    "F32": Layout(4, SEVEN_F, (0x80, 0x80), 0),
    "C64": Layout(4, SEVEN_F, (0x80, 0x80), 0),
    "F64": Layout(8, SEVEN_F, (0xF0, 0xF0), 0),
    "F8_E4M3": Layout(1, SEVEN_F, None, 0),
    "F8_E5M2": Layout(1, E5, None, 2),
    "F8_E4M3FNUZ": Layout(1, b"\x80", None, 0),
    "F8_E5M2FNUZ": Layout(1, b"\x80", None, 0),
    "F8_E8M0": Layout(1, b"\xff", None, 0),
}


def find_special(dtype: str, data: bytes) -> Optional[Tuple[str, int]]:
    """("nan" or "inf", element number) of the first value in `data` that is no finite number; NaN goes before Inf.

    >>> find_special("BF16", bytes([0x80, 0x3f, 0xc0, 0x7f])), find_special("F32", bytes(8))
    (('nan', 1), None)
    """
    layout = LAYOUTS.get(dtype)
    if layout is None:
        return None
    width = layout.width
    data = data[: len(data) // width * width]
    high = data[width - 1 :: width]
    if not any(value in high for value in layout.high):  # as good as always, and a search for one byte is fast
        return None
    infinite = None
    for match in re.finditer(b"[%s]" % re.escape(layout.high), high):
        number = match.start()
        if layout.exact and data[number * width + width - 2] & layout.exact[0] != layout.exact[1]:
            continue
        if not _is_infinite(dtype, layout, data[number * width : (number + 1) * width]):
            return ("nan", number)
        infinite = infinite or ("inf", number)
    return infinite


def _is_infinite(dtype: str, layout: Layout, value: bytes) -> bool:
    if dtype in {"F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"}:
        return False  # these have no infinity
    if layout.exact is None:
        rest = int.from_bytes(value, "little") & ((1 << (8 * (layout.width - 1) + layout.mantissa_bits)) - 1)
        return rest == 0
    free = ~layout.exact[0] & 0xFF
    return value[-2] & free == 0 and not any(value[:-2])


def constant_pages(data: bytes) -> List[Tuple[int, int]]:
    """(begin, end) of the runs of pages that hold one repeated value of eight bytes; pages count from the beginning.

    >>> constant_pages(bytes(8192) + b"12345678" * 512 + b"abc")
    [(0, 8192), (8192, 12288)]
    """
    runs = []  # type: List[Tuple[int, int]]
    before = b""
    for begin in range(0, len(data), PAGE):
        first = data[begin : begin + PERIOD]
        end = min(begin + PAGE, len(data))
        # Two ends that are equal are rare, so that nearly no page is compared as a whole.
        if len(first) < PERIOD or first != data[end - PERIOD : end] or (end - begin) % PERIOD:
            before = b""
        elif data[begin : end - PERIOD] == data[begin + PERIOD : end]:
            if first == before:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((begin, end))
            before = first
        else:
            before = b""
    return runs
