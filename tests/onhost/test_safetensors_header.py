"""Safetensors headers: what is wrong with a file is always a finding, never a crash."""

import json
import struct
import time

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


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4", "F8_E4M3", "I64", "Q9", "", 3]),
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 8, 2**31, 2**62, -1, 1.0, None]), max_size=6),
        "data_offsets": st.lists(st.sampled_from([0, 4, 8, 16, 2**40, 2**63, -8]), min_size=1, max_size=3),
    }
)
ANY = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


@given(st.binary(max_size=200) | ANY.map(lambda value: json.dumps(value).encode()))
def test_any_header_is_read_or_a_finding(raw):
    """Never anything but a finding."""
    try:
        parse_header(raw)
    except HeaderProblem as problem:
        assert problem.kind


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__", "ü"]), ENTRY | ANY, max_size=4))
def test_any_plausible_header_is_read_or_a_finding(header):
    """The same close to valid: shapes of huge products, offsets that overlap, strange types."""
    try:
        tensors = parse_header(json.dumps(header).encode())
    except HeaderProblem as problem:
        assert problem.kind
    else:
        assert sum(tensor.end - tensor.begin for tensor in tensors) == max([t.end for t in tensors] or [0])


WHOLE = safetensors({"a": ("F32", (4, 8)), "b": ("BF16", (16,))}, metadata={"format": "pt"})


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12), st.integers(0, len(WHOLE)))
def test_any_damaged_file_is_read_or_a_finding(tmp_path_factory, at, raw, length):
    """Bytes overwritten anywhere, the file cut anywhere: a finding, or a header that is still valid."""
    content = (WHOLE[:at] + raw + WHOLE[at + len(raw) :])[:length]
    try:
        tensors, begin, extent = read(tmp_path_factory.getbasetemp(), content)
    except HeaderProblem as problem:
        assert problem.kind
    else:
        assert begin <= extent
        assert tensors or extent == begin


@pytest.mark.parametrize("shape", ["[" + ",".join(["4611686018427387904"] * 50_000) + "]", "[" + "9" * 500_000 + "]"])
def test_numbers_without_end_take_no_time(shape):
    """A product of fifty thousand huge numbers, or one number of half a million digits, is a finding at once."""
    raw = b'{"a": {"dtype": "F32", "shape": %s, "data_offsets": [0, 8]}}' % shape.encode()
    began_at = time.monotonic()
    with pytest.raises(HeaderProblem):
        parse_header(raw)
    assert time.monotonic() - began_at < 2
