"""GGUF headers: what is wrong with a file is always a finding, and nothing large is allocated."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.onhost.gguf import read_gguf
from opslib.onhost.safetensors_header import HeaderProblem
from tests.real_checkpoint import gguf_bytes

PAIRS = [("general.architecture", "text", "llama"), ("general.alignment", "u32", 64), ("t", "texts", ["a", "bc"])]
GOOD = gguf_bytes({"a.weight": 100, "b.weight": 64}, [*PAIRS, ("split.no", "u16", 1), ("split.count", "u16", 3)], 64)


def read(tmp_path, content):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return read_gguf(str(path))


def test_a_header_is_summed_up(tmp_path):
    """Tensors by type, the extent up to the last tensor's end, and which part of a set the file is."""
    found = read(tmp_path, GOOD)
    assert found["parameters"] == {"F32": 164}
    assert 0 <= len(GOOD) - found["extent"] < 64
    assert found["split"] == {"number": 2, "count": 3, "n_tensors": None}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "gguf-magic"),
        (b"GGML" + GOOD[4:], "gguf-magic"),
        (b"GGUF" + struct.pack(">I", 3) + GOOD[8:], "gguf-version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "header-length"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "header-length"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60) + b"x" * 50, "header-length"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2**60), "header-length"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**60), "header-cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "header-not-json"),
        (GOOD[:100], "header-cut"),
    ],
)
def test_each_fault_has_its_kind(tmp_path, content, kind):
    """Magic, version, counts that cannot be, values of no type, a header that ends early."""
    tracemalloc.start()
    with pytest.raises(HeaderProblem) as caught:
        read(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.kind == kind
    assert peak < 2**20


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=9), st.integers(0, len(GOOD)))
def test_any_damage_is_read_or_a_finding(tmp_path_factory, at, raw, length):
    """Never anything but a finding, wherever bytes are overwritten and the file is cut."""
    content = (GOOD[:at] + raw + GOOD[at + len(raw) :])[:length]
    try:
        assert read(tmp_path_factory.getbasetemp(), content)["n_tensors"] >= 0
    except HeaderProblem as problem:
        assert problem.kind
