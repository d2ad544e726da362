"""Listings that an operator brings: each form that hubs and tools write is understood."""

import json

import pytest

from opslib.domain.digests import HashingSpeed, parse_expectation, render_manifest
from opslib.errors import BadParameter
from tests.onhost.test_verify_faults import home, judged
from tests.real_checkpoint import COMMIT, git_blob, model_files, write_model_in

__all__ = ["home"]
A, B = "a" * 64, "b" * 40
TREE = [
    {"type": "directory", "path": "sub", "oid": B},
    {"type": "file", "path": "m.safetensors", "size": 9, "oid": B, "lfs": {"oid": A, "size": 9, "pointerSize": 130}},
    {"type": "file", "path": "config.json", "size": 2, "oid": B},
]
INFO = {
    "sha": COMMIT,
    "siblings": [
        {"rfilename": "m.safetensors", "size": 9, "blobId": B, "lfs": {"sha256": A, "size": 9}},
        {"rfilename": "config.json", "size": 2, "blobId": B},
    ],
}
FORMS = {
    "tree": json.dumps(TREE),
    "model info": json.dumps(INFO),
    "manifest": render_manifest({"m.safetensors": A, "config.json": A}, {"m.safetensors": 9, "config.json": 2}),
    "sha256sum": f"{A}  m.safetensors\n{A.upper()} *./config.json\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_understood(form):
    """Path, digest and size, and the commit where it is told."""
    expectation = parse_expectation(FORMS[form], "listing")
    assert [file.path for file in expectation.files][:: -1 if form == "manifest" else 1] == [
        "m.safetensors",
        "config.json",
    ]
    assert {file.path: file.digest for file in expectation.files}["m.safetensors"] == A
    assert expectation.commit == (COMMIT if form == "model info" else None)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "hello\n", "[1, 2]", '[{"type": "file"}]', '{"files": []}'])
def test_what_is_no_listing_is_refused(text):
    """Nothing is verified against a file that says nothing."""
    with pytest.raises(BadParameter):
        parse_expectation(text, "listing")


def listing(**changes):
    files = model_files()
    rows = [
        {"type": "file", "path": name, "size": len(content), "oid": git_blob(content)}
        for name, content in files.items()
    ]
    return parse_expectation(json.dumps([{**row, **changes.get(row["path"], {})} for row in rows]), "listing")


def test_a_listing_proves_a_plain_copy(home):
    """Digests that nobody recorded on the host come with the operator."""
    model = write_model_in("plain", home / "m")
    assert judged(model, "digest", expect=listing().rows()).summary.endswith("10 of 10 files have their digest")


def test_a_listing_finds_what_is_missing_or_of_another_size(home):
    """Both are seen before any byte is hashed; a README may be left out."""
    model = write_model_in("plain", home / "m")
    for name in ("generation_config.json", "README.md"):
        (model / name).unlink()
    rows = listing(**{"tokenizer.json": {"size": 5}}).rows()
    found = {(f.kind, f.file) for f in judged(model, "extents", expect=rows).findings}
    assert found == {("missing-file", "generation_config.json"), ("size-mismatch", "tokenizer.json")}


def test_the_time_to_hash_follows_from_the_trial():
    """Bytes by speed of all processes; unknown without a measurement."""
    speed = HashingSpeed(name="hashlib", n_processes=4, measured={"hashlib": 10**9})
    assert speed.duration_s(8 * 10**9) == 2.0
    assert HashingSpeed(name="hashlib", n_processes=4).duration_s(1) is None
