"""Verifying a checkpoint on a host."""

import json

import pytest

from opslib.errors import CouldNotFindOut, UnexpectedAnswer
from opslib.onhost.safetensors_header import read_header
from opslib.workflow.verify import verify_checkpoint
from tests.checkpoint_damage import damage
from tests.checkpoints import write_model
from tests.fakes import FakeHost
from tests.real_checkpoint import model_files, safetensors_bytes, write_local_dir, write_plain


def test_a_name_is_looked_up_under_the_models_directory_and_progress_is_told(tmp_path):
    """Names and absolute paths both work; progress comes as it happens."""
    write_model(tmp_path / "tiny")
    told = []
    report = verify_checkpoint(FakeHost(models_dir=str(tmp_path)), "tiny", on_progress=told.append)
    assert (report.state, report.path) == ("ok", str(tmp_path / "tiny"))
    assert told[-1]["files"] == 3


def test_a_missing_directory_is_a_critical_report(tmp_path):
    """A judgement is a value."""
    assert verify_checkpoint(FakeHost(), str(tmp_path / "none")).state == "critical"


def test_a_directory_that_may_not_be_read_is_could_not_find_out():
    """Not being allowed to look says nothing about the checkpoint."""
    host = FakeHost()
    host.programs["verify"] = json.dumps(
        {"event": "listing", "path": "/m", "level": "extents", "exists": True, "problem": "unreadable"}
    )
    with pytest.raises(CouldNotFindOut, match="may not be read"):
        verify_checkpoint(host, "/m")


def test_a_program_that_dies_is_an_unexpected_answer():
    """Half an answer is none."""
    host = FakeHost()
    host.programs["verify"] = '{"event": "progress", "files": 1, "n_files": 3, "bytes": 10}\nKilled\n'
    with pytest.raises(UnexpectedAnswer):
        verify_checkpoint(host, "/m")


def test_practice_weights_are_holes_on_purpose(tmp_path):
    """On the rehearsal host a whole file of holes is a note; on any other it is a finding, as is any other hole."""
    model = write_plain(tmp_path / "m", model_files())
    for name in ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"):
        size = (model / name).stat().st_size
        _, begin, _ = read_header(str(model / name), size)
        damage(model, ["hole-tail", name, size - begin])
    practice = verify_checkpoint(FakeHost(is_rehearsal=True), str(model), level="sample")
    assert (practice.state, practice.notes[1][:43]) == ("ok", "practice host: the weights of 2 files are h")
    assert verify_checkpoint(FakeHost(), str(model), level="sample").state == "critical"
    damage(model, ["hole-tail", "model-00003-of-00003.safetensors", 100_000])
    assert verify_checkpoint(FakeHost(is_rehearsal=True), str(model), level="sample").state == "critical"


def test_only_what_can_be_compared_is_hashed_where_asked(tmp_path, monkeypatch):
    """Files without a known digest are told without being read; nothing of them is called verified."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    model = write_local_dir(tmp_path / "m", model_files())
    for note in (model / ".cache/huggingface/download").glob("*.safetensors.metadata"):
        note.write_text("1f\n\n1764403200\n")
    report = verify_checkpoint(FakeHost(), str(model), level="digest", is_everything_hashed=False)
    assert (report.state, len(report.unverifiable), len(report.sha256)) == ("warning", 3, 7)


def test_zeros_that_were_published_are_no_finding(tmp_path, monkeypatch):
    """What is proven to the bit is right, whatever it holds."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    zero = safetensors_bytes({"model.layers.1.mlp.up_proj.weight": ("bfloat16", (512, 256), bytes(512 * 256 * 2))})
    files = {"model.safetensors": zero, "config.json": b"{}", "tokenizer.json": b"{}"}
    model = write_local_dir(tmp_path / "m", files)
    assert verify_checkpoint(FakeHost(), str(model), level="sample").state == "critical"
    assert verify_checkpoint(FakeHost(), str(model), level="digest").state == "ok"
