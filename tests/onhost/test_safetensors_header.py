"""Safetensors headers: what is wrong with a file is always a finding, never a crash."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.onhost.safetensors_header import HeaderProblem, parse_header, read_header
from tests.checkpoints import safetensors, with_header

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def read(tmp_path, content):
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    return read_header(str(file), len(content))


@pytest.mark.parametrize(
    "tensors",
    [{"a": ("F32", (2, 3))}, {"a": ("F32", ()), "b": ("BF16", (0, 4)), "c": ("F8_E4M3", (5,))}, {}],
)
def test_a_valid_file_is_covered_by_its_header(tmp_path, tensors):
    """0-dim and empty tensors, and a file without any, are valid."""
    content = safetensors(tensors, metadata={"format": "pt"})
    found, _, extent = read(tmp_path, content)
    assert {tensor.name for tensor in found} == set(tensors)
    assert extent == len(content)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "header-cut"),
        (b"\1\2\3", "header-cut"),
        (struct.pack("<Q", 2**60), "header-length"),
        (struct.pack("<Q", 5000) + b"{", "header-cut"),
        (with_header(b"{nope"), "header-not-json"),
        (with_header(b"[1]"), "header-not-json"),
        (with_header(b"\xff\xfe"), "header-not-json"),
        (with_header(b"[" * 100_000), "header-not-json"),
        (with_header(b'{"a": {}, "a": {}}'), "header-not-json"),
        (with_header({"a": {"dtype": "F32"}}), "header-not-json"),
        (with_header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}), "header-not-json"),
        (with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}), "header-not-json"),
        (with_header({"a": {"dtype": "Q7", "shape": [2], "data_offsets": [0, 8]}}), "unknown-dtype"),
        (with_header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}), "dtype-shape-mismatch"),
        (with_header({**GOOD, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}), "overlapping-offsets"),
        (with_header({**GOOD, "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]}}), "offset-gap"),
    ],
)
def test_each_fault_has_its_kind(tmp_path, content, kind):
    """A header claiming 2^60 bytes allocates nothing."""
    with pytest.raises(HeaderProblem) as caught:
        read(tmp_path, content)
    assert caught.value.kind == kind


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_any_header_is_read_or_a_finding(raw):
    """Never anything but a finding."""
    try:
        parse_header(raw)
    except HeaderProblem as problem:
        assert problem.kind
