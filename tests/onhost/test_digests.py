"""Hashing files against what their download recorded."""

import hashlib

from opslib.onhost.digests import compare_digests, recorded

CONTENT = b"weights" * 1000


def entry(path, *, is_symlink=False, is_readable=True):
    return {"path": path, "is_symlink": is_symlink, "is_readable": is_readable}


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def test_etags_and_blob_names_are_recorded_digests(tmp_path):
    """A digest is an etag of 40 or 64 hexadecimal digits, or the name of the blob that a symlink of the cache leads to."""
    blob = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "a.safetensors").symlink_to(f"../../blobs/{blob}")
    files = [
        entry("a.safetensors", is_symlink=True),
        entry("config.json"),
        entry("weak"),
        entry("gone", is_readable=False),
        entry(".cache/x"),
    ]
    notes = [
        {"path": path, "etag": etag}
        for path, etag in {"config.json": f'"{git_blob(b"{}")}"', "weak": "W/12", "gone": "0" * 40}.items()
    ]
    assert recorded(str(tmp_path), files, notes) == {"a.safetensors": blob, "config.json": git_blob(b"{}")}


def test_each_file_is_hashed_as_its_digest_asks(tmp_path):
    """64 digits mean SHA-256, 40 mean git's blob id; what can't be read is said, and stops nothing."""
    (tmp_path / "large").write_bytes(CONTENT)
    (tmp_path / "small").write_bytes(CONTENT)
    wanted = {"large": hashlib.sha256(CONTENT).hexdigest(), "small": git_blob(CONTENT), "gone": "0" * 64}
    answers = {answer["path"]: answer for answer in compare_digests(str(tmp_path), wanted, lambda *_, **__: None)}
    assert answers["large"]["found"] == wanted["large"]
    assert answers["small"]["found"] == wanted["small"]
    assert answers["gone"]["problem"]
