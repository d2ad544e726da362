"""Judging a checkpoint: each fault has its kind, path and state, and a whole one has none."""

import hashlib
import json
import os
import time

import pytest

from opslib.domain.checkpoint import judge_checkpoint, parse_listing
from opslib.domain.checkpoint_kinds import cause_of, kinds
from opslib.domain.diagnosis_catalogue import list_causes
from opslib.domain.states import State
from opslib.errors import UnexpectedAnswer
from opslib.onhost import verify
from tests.checkpoints import safetensors, write_model

FIRST, SECOND = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
LATER = int(time.time()) + 86400  # of the download: a file that was changed after it is a finding of its own
INDEX = "model.safetensors.index.json"


def judge(path, capsys):
    verify.main({"path": str(path), "level": "extents"})
    return judge_checkpoint(parse_listing(capsys.readouterr().out))


def edit_index(model, **changes):
    index = json.loads((model / INDEX).read_text())
    for key, value in changes.items():
        index["metadata" if key == "total_size" else "weight_map"].update(value)
    (model / INDEX).write_text(json.dumps(index))


def test_a_whole_checkpoint_is_ok_and_summed_up(tmp_path, capsys):
    """Shards, parameters and bytes by dtype and part, commit and config are in the report."""
    report = judge(write_model(tmp_path), capsys)
    assert (report.state, report.findings, report.layout, report.commit) == ("ok", (), "hf-local-dir", "abc123")
    assert report.summary == "3 of 3 shards, 0.9 kB, every header covers its file"
    assert report.parameters_by_dtype == {"BF16": 96, "F32": 24}
    assert report.bytes_by_part == {"norm": 96, "other": 192}
    assert report.config == {"model_type": "llama"}


FAULTS = {
    "missing-shard": (lambda m: (m / SECOND).unlink(), SECOND, "critical"),
    "truncated": (lambda m: os.truncate(m / SECOND, (m / SECOND).stat().st_size - 1), SECOND, "critical"),
    "trailing-bytes": (lambda m: (m / SECOND).write_bytes((m / SECOND).read_bytes() + b"x"), SECOND, "critical"),
    "header-cut": (lambda m: os.truncate(m / SECOND, 20), SECOND, "critical"),
    "stray-shard": (lambda m: (m / "x.safetensors").write_bytes(safetensors({})), "x.safetensors", "warning"),
    "tensor-missing": (lambda m: edit_index(m, weight_map={"ghost": SECOND}), SECOND, "critical"),
    "tensor-elsewhere": (lambda m: edit_index(m, weight_map={"model.layers.1.a.weight": SECOND}), SECOND, "critical"),
    "total-size": (lambda m: edit_index(m, total_size={"total_size": 5}), INDEX, "warning"),
    "index-broken": (lambda m: (m / INDEX).write_text("{"), INDEX, "critical"),
    "lfs-pointer": (lambda m: (m / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n"), "tokenizer.json", "critical"),
    "html-page": (lambda m: (m / SECOND).write_text("<!DOCTYPE html><html>"), SECOND, "critical"),
    "not-json": (lambda m: (m / "generation_config.json").write_text("{"), "generation_config.json", "critical"),
    "companion-missing": (lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json", "critical"),
    "zero-bytes": (lambda m: (m / SECOND).write_bytes(b""), SECOND, "critical"),
    "leftover": (lambda m: (m / "y.incomplete").write_text("x"), "y.incomplete", "warning"),
    "mixed-revisions": (lambda m: (m / f".cache/huggingface/download/{SECOND}.metadata").write_text(f"z\ne\n{LATER}\n"), SECOND, "warning"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_found_under_its_kind(tmp_path, capsys, kind):
    """The finding names the file; the report is as bad as its worst finding."""
    break_it, path, state = FAULTS[kind]
    break_it(write_model(tmp_path))
    report = judge(tmp_path, capsys)
    found = {(finding.kind, finding.file, finding.state.value) for finding in report.findings}
    assert (kind, path, state) in found
    assert report.state == state
    assert all("{file}" not in finding.repair for finding in report.findings)


def test_missing_shards_are_named_with_the_command_that_fetches_them(tmp_path, capsys):
    """The exact names, the pinned commit and shell-safe words."""
    model = write_model(tmp_path / "a b")
    (model / SECOND).unlink()
    report = judge(model, capsys)
    assert report.missing_shards == (SECOND,)
    assert report.summary == f"2 of 3 shards, 0.6 kB: {SECOND} is missing"
    assert f"{SECOND} --revision abc123 --local-dir '{model}'" in report.findings[0].repair


def test_a_numbering_tells_what_is_missing_without_an_index(tmp_path, capsys):
    """-00002-of-00003 implies the others."""
    model = write_model(tmp_path)
    (model / INDEX).unlink()
    (model / FIRST).unlink()
    assert judge(model, capsys).missing_shards == (FIRST,)


def test_a_dangling_symlink_is_a_finding(tmp_path, capsys):
    """As a hub cache whose blob is gone."""
    model = write_model(tmp_path)
    (model / SECOND).unlink()
    (model / SECOND).symlink_to("../blobs/gone")
    report = judge(model, capsys)
    assert [(finding.kind, finding.file) for finding in report.findings] == [("dangling-symlink", SECOND)]


def test_no_directory_is_critical_with_one_sentence(tmp_path, capsys):
    """A wrong path is the commonest fault of all."""
    report = judge(tmp_path / "none", capsys)
    assert (report.state, report.summary) == ("critical", f"{tmp_path}/none: no such directory")


def test_a_directory_without_weights_is_critical(tmp_path, capsys):
    """A config alone is no model."""
    (tmp_path / "config.json").write_text("{}")
    assert "no-weights" in {finding.kind for finding in judge(tmp_path, capsys).findings}


@pytest.mark.parametrize("text", ["", "Traceback", '{"event": "listing"}'])
def test_an_answer_without_listing_is_unexpected(text):
    """No listing is no verdict."""
    with pytest.raises(UnexpectedAnswer):
        parse_listing(text)


def test_no_false_alarm_on_other_layouts(tmp_path, capsys):
    """Mistral's consolidated file beside the shards, a single unnumbered file, an adapter without config: all whole."""
    both = write_model(tmp_path / "both")
    (both / "consolidated.safetensors").write_bytes(safetensors({"layers.0.a.weight": ("BF16", (4, 8))}))
    report = judge(both, capsys)
    assert (report.state, report.parameters_by_dtype) == ("ok", {"BF16": 96, "F32": 24})
    single = tmp_path / "single"
    single.mkdir()
    (single / "model.safetensors").write_bytes(safetensors({"a": ("F8_E4M3", (4,)), "b": ("I64", ())}))
    (single / "config.json").write_text("{}")
    (single / "tokenizer.model").write_bytes(b"x")
    report = judge(single, capsys)
    assert (report.state, report.summary) == ("ok", "1 of 1 shard, 0.1 kB, every header covers its file")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(safetensors({"a": ("F32", (4,))}))
    (adapter / "adapter_config.json").write_text("{}")
    assert judge(adapter, capsys).state == "ok"


def judge_digests(path, capsys):
    verify.main({"path": str(path), "level": "digest"})
    return judge_checkpoint(parse_listing(capsys.readouterr().out))


def test_one_turned_bit_is_found_by_its_digest(tmp_path, capsys):
    """A file of the right size and form that is not the file downloaded is critical, and only the digest can tell."""
    model = write_model(tmp_path)
    for name in (FIRST, SECOND, SECOND.replace("02-of", "03-of")):
        etag = hashlib.sha256((model / name).read_bytes()).hexdigest()
        (model / f".cache/huggingface/download/{name}.metadata").write_text(f"abc123\n{etag}\n{LATER}\n")
    assert judge_digests(model, capsys).state == "ok"
    data = bytearray((model / SECOND).read_bytes())
    data[-1] ^= 1
    (model / SECOND).write_bytes(data)
    assert judge(model, capsys).state == "ok"
    report = judge_digests(model, capsys)
    assert [(finding.kind, finding.file) for finding in report.findings] == [("digest-mismatch", SECOND)]
    assert (report.state, report.cause) == ("critical", "checkpoint/corrupt")


def test_digests_that_nobody_recorded_prove_nothing(tmp_path, capsys):
    """Asked for digests where the download recorded none, the report warns that no bit is proven."""
    report = judge_digests(write_model(tmp_path), capsys)
    assert (report.state, report.findings[0].kind, report.cause) == ("warning", "no-digest", None)


def test_every_critical_finding_has_a_cause_of_the_catalogue():
    """Verification names what would stop the launch as the diagnosis would."""
    known = {entry.id for entry in list_causes()}
    for kind, row in kinds().items():
        assert row.state is not State.CRITICAL or cause_of(kind, "config.json") in known
