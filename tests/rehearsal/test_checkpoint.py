"""The generated checkpoint: valid headers over sparse files."""

import hashlib
import json
import struct

import pytest

from opslib.rehearsal.checkpoint import write_checkpoint


def header_of(path):
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return 8 + length, json.loads(file.read(length))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    directory = tmp_path_factory.mktemp("large")
    return directory, write_checkpoint(directory)


def test_it_says_230_billion_parameters(large):
    """125 shards of 230 GB apparent size in all, a few MB on disk."""
    directory, size = large
    assert len(list(directory.glob("*.safetensors"))) == 125
    assert 229e9 < size < 231e9
    assert sum(path.stat().st_blocks * 512 for path in directory.iterdir()) < 40e6


def test_every_header_covers_its_file_exactly(large):
    """A shard's data ends where the file ends, tensors follow each other, and sizes are those of dtype and shape."""
    bits = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
    for path in sorted(large[0].glob("*.safetensors"))[::31]:
        start, header = header_of(path)
        end = 0
        for tensor in (value for name, value in header.items() if name != "__metadata__"):
            count = bits[tensor["dtype"]]
            for length in tensor["shape"]:
                count *= length
            assert tensor["data_offsets"] == [end, end + count]
            end += count
        assert path.stat().st_size == start + end


def test_index_names_every_tensor_where_it_is(large):
    """The index and the headers agree, and total_size is the data's."""
    directory = large[0]
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    found, total = {}, 0
    for path in directory.glob("*.safetensors"):
        start, header = header_of(path)
        found.update({name: path.name for name in header if name != "__metadata__"})
        total += path.stat().st_size - start
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == total


def test_hub_metadata_is_truthful_for_small_files(large):
    """Three lines per file: commit, etag (git's blob id), time."""
    directory = large[0]
    commit, etag, at = (directory / ".cache/huggingface/download/config.json.metadata").read_text().splitlines()
    content = (directory / "config.json").read_bytes()
    assert len(commit) == 40
    assert etag == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    assert float(at) >= (directory / "config.json").stat().st_mtime


def test_tiny_kind_has_true_shard_digests(tmp_path):
    """The tiny kind's shards hash to their etags."""
    write_checkpoint(tmp_path, "tiny")
    shard = tmp_path / "model-00002-of-00003.safetensors"
    etag = (tmp_path / f".cache/huggingface/download/{shard.name}.metadata").read_text().splitlines()[1]
    assert etag == hashlib.sha256(shard.read_bytes()).hexdigest()
