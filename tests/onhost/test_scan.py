"""Reading tensors' bytes: special values, runs, the sample's promises, and bounded memory."""

import os
import random
import struct
import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.domain.checkpoint_notes import detection_probability
from opslib.onhost import scan
from opslib.onhost.safetensors_header import Tensor, read_header
from opslib.onhost.scan_values import constant_pages, find_special
from tests.checkpoints import with_header
from tests.onhost.test_verify_faults import home, judged
from tests.real_checkpoint import SMALL, safetensors_bytes, values, write_plain

__all__ = ["home"]
MIB = 2**20
PLAN = {"stride_bytes": scan.STRIDE_BYTES, "sample_bytes": scan.SAMPLE_BYTES}


def naive(dtype, data):
    """The first NaN, else the first infinity, by numpy."""
    if dtype == "BF16":
        numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        numbers = np.frombuffer(data, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype])
    for name, found in (("nan", np.isnan(numbers)), ("inf", np.isinf(numbers))):
        if found.any():
            return (name, int(found.argmax()))
    return None


@given(
    st.sampled_from(["BF16", "F16", "F32", "F64"]),
    st.lists(st.sampled_from([0, 1, 0x3C, 0x7B, 0x7C, 0x7D, 0x7F, 0x80, 0xF0, 0xF8, 0xFC, 0xFF]), max_size=64),
)
def test_special_values_are_those_that_numpy_sees(dtype, raw):
    """NaN and Inf of the IEEE dtypes and bfloat16, found in raw bytes, are the same as decoded."""
    data = bytes(raw[: len(raw) // 8 * 8])
    assert find_special(dtype, data) == naive(dtype, data)


@pytest.mark.parametrize(
    ("dtype", "raw", "found"),
    [
        ("F8_E4M3", "7e", None), ("F8_E4M3", "7f", "nan"), ("F8_E4M3", "ff", "nan"),
        ("F8_E5M2", "7b", None), ("F8_E5M2", "7c", "inf"), ("F8_E5M2", "fc", "inf"), ("F8_E5M2", "7d", "nan"),
        ("F8_E4M3FNUZ", "80", "nan"), ("F8_E4M3FNUZ", "7f", None), ("F8_E8M0", "ff", "nan"), ("F8_E8M0", "7f", None),
        ("U8", "ff", None), ("I64", "ff" * 8, None),
    ],
)  # fmt: skip
def test_special_values_of_eight_bits(dtype, raw, found):
    """OFP8: E4M3 has two NaN and no infinity, E5M2 is like IEEE; FNUZ has one NaN; E8M0 is an exponent."""
    special = find_special(dtype, bytes.fromhex(raw))
    assert (special[0] if special else None) == found


def test_runs_of_one_value_join_over_pages():
    """Pages of one repeated value make one run; another value begins another; an almost constant page is none."""
    odd = b"abcdefgh" * 512
    assert constant_pages(bytes(4096) + odd + odd + bytes(100)) == [(0, 4096), (4096, 12288)]
    assert constant_pages(b"\0" * 4095 + b"x" + b"\0" * 4096) == [(4096, 8192)]


def model(home, tensors, **more):
    files = {name: text.encode() for name, text in SMALL.items()}
    return write_plain(home / "m", {**files, "model.safetensors": safetensors_bytes(tensors), **more})


def weight(rows, columns=1024):
    return bytearray(values("bfloat16", (rows, columns)))


@pytest.mark.parametrize(
    ("begin", "size", "kind"),
    [
        (2048 * 100, 2048 * 64, "zero-rows"),  # 64 whole rows: padding looks like that
        (2048 * 100 + 96, 2048 * 64, "zero-run"),  # across rows: a block that was never written
        (2048 * 100 + 96, 4096, None),  # shorter than chance allows to judge
    ],
)
def test_a_run_within_a_tensor_is_judged_by_its_place(home, begin, size, kind):
    """Whole rows of zeros are a warning, others are critical, short ones nothing."""
    raw = weight(1024)
    raw[begin : begin + size] = bytes(size)
    directory = model(home, {"a.weight": ("bfloat16", (1024, 1024), bytes(raw)), "b.weight": ("bfloat16", (64, 64))})
    assert [finding.kind for finding in judged(directory, "full-scan").findings] == ([kind] if kind else [])


def test_a_constant_run_is_a_warning(home):
    """One value over and over is no weight, but no proof of harm either."""
    raw = weight(1024)
    raw[2048 * 100 : 2048 * 200] = b"\x01\x3c" * (1024 * 100)
    report = judged(model(home, {"a.weight": ("bfloat16", (1024, 1024), bytes(raw))}), "sample")
    assert [(finding.kind, finding.state.value) for finding in report.findings] == [("constant-run", "warning")]


def large(path, holes=(), zeros=(), size=64 * MIB):
    """A file of one tensor over the size that is read whole; fp8 weights, with holes and zeros."""
    block = np.random.default_rng(1).integers(1, 0x78, MIB, dtype=np.uint8).tobytes()
    raw = with_header({"a.weight": {"dtype": "F8_E4M3", "shape": [size // 1024, 1024], "data_offsets": [0, size]}})
    with path.open("wb") as file:
        file.write(raw)
        file.writelines(block for _ in range(size // MIB))
        for begin, length in zeros:
            file.seek(len(raw) + begin)
            file.write(bytes(length))
    return path


@pytest.mark.parametrize("seed", range(5))
def test_the_sample_finds_what_it_promises(tmp_path, seed):
    """A run of two strides and a short zero tail are found with every seed; the run is followed to its exact ends."""
    begin, length = 20 * MIB + 12345, 8 * MIB
    path = large(tmp_path / "x", zeros=[(begin, length), (64 * MIB - 5000, 5000)])
    tensors, at, _ = read_header(str(path), path.stat().st_size)
    *_, found = scan.scan_file(str(path), tensors, at, is_full=False, seed=seed)
    assert [(run["begin"] - at, run["end"] - at, run["is_tail"]) for run in found["runs"]] == [
        (begin, begin + length, False),
        (64 * MIB - 5000, 64 * MIB, True),
    ]
    assert found["n_read"] < 16 * MIB


def test_the_stated_probability_is_right():
    """Over many seeds a run of 1 MiB is met as often as stated."""
    stated, strata = detection_probability(MIB, PLAN), scan.STRIDE_BYTES
    chance, met, tries = random.Random(3), 0, 4000
    for _ in range(tries):
        begin = 4096 * chance.randrange((strata * 3) // 4096)
        at = strata * (begin // strata) + chance.randrange(0, strata - scan.SAMPLE_BYTES + 1, 4096)
        after = strata * (begin // strata + 1) + chance.randrange(0, strata - scan.SAMPLE_BYTES + 1, 4096)
        met += any(min(place + scan.SAMPLE_BYTES, begin + MIB) - max(place, begin) >= 4096 for place in (at, after))
    assert abs(met / tries - stated) < 0.03


def test_holes_are_found_without_reading(tmp_path):
    """A sparse file of a terabyte takes no time; its hole is known to the byte."""
    size = 2**40
    raw = with_header({"a.weight": {"dtype": "F8_E4M3", "shape": [size // 1024, 1024], "data_offsets": [0, size]}})
    path = tmp_path / "x"
    path.write_bytes(raw)
    os.truncate(path, len(raw) + size)
    tensors, at, _ = read_header(str(path), path.stat().st_size)
    *_, found = scan.scan_file(str(path), tensors, at, is_full=True, seed=1)
    assert [(run["kind"], run["n_whole"], run["is_tail"]) for run in found["runs"]] == [("hole", 1, True)]
    assert found["n_read"] < MIB


def test_memory_is_bounded_by_a_block(tmp_path):
    """A full scan of 64 MiB holds a few blocks at a time."""
    path = large(tmp_path / "x")
    tensors, at, _ = read_header(str(path), path.stat().st_size)
    tracemalloc.start()
    for _ in scan.scan_file(str(path), tensors, at, is_full=True, seed=1):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * MIB


def test_a_header_of_2_to_the_60_allocates_nothing(tmp_path):
    """The length is judged before anything is read."""
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<Q", 2**60) + b"x" * 1000)
    tracemalloc.start()
    with pytest.raises(Exception, match="claims 1152921504606846976 bytes"):
        read_header(str(path), 1008)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


@given(st.binary(max_size=3000), st.sampled_from(["BF16", "F32", "F8_E4M3", "U8"]), st.integers(1, 40))
def test_any_bytes_can_be_scanned(raw, dtype, cut):
    """Whatever the bytes and wherever the file ends, a scan ends with an answer."""
    width = {"BF16": 2, "F32": 4}.get(dtype, 1)
    size = len(raw) // width * width
    tensors = [Tensor("a.weight", dtype, [size // width], size // width, (0, size)),
               Tensor("b.weight", dtype, [1, 40], 40, (size, size + 40 * width))]  # fmt: skip
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"12345678" + raw[:-cut])
        file.flush()
        *_, found = scan.scan_file(file.name, tensors, 8, is_full=True, seed=1)
    assert set(found) == {"runs", "specials", "n_read"}
