"""A record that has no room takes no answer away."""

from datetime import UTC, datetime
from errno import EACCES, ENOSPC
from pathlib import Path

import pytest

from opslib.errors import Refused
from opslib.records.evidence import EvidenceFile, keep_evidence
from opslib.records.lenient import LenientFolder

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def raising(number):
    def refuse(*_args, **_named):
        raise OSError(number, {ENOSPC: "No space left on device", EACCES: "Permission denied"}[number])

    return refuse


def create(runs_dir):
    return LenientFolder.create(runs_dir, "gpu-07", "vllm", "40-investigate-crash", NOW)


def test_what_can_not_be_written_is_said_once_and_no_empty_folder_stays(tmp_path, monkeypatch):
    """The first loss is told with what to do; a folder that no list would find is taken away."""
    folder = create(tmp_path)
    assert folder.say_loss() == ""
    monkeypatch.setattr("opslib.records.folder.atomic_write", raising(ENOSPC))
    keep_evidence(folder, "start", "vllm", [EvidenceFile(name="a.txt", asked="a", asked_at=NOW, text="b")])
    folder.write_json("record.json", {})
    folder.append_event({"text": "there is room for this"})
    said = folder.say_loss()
    assert f"{folder.path}/evidence/start/a.txt could not be written: No space left on device. Next: make room" in said
    assert not folder.path.exists()
    folder.append_event({"text": "nowhere"})


def test_a_record_that_was_begun_stays(tmp_path, monkeypatch):
    """What there was room for may be all that anybody has."""
    folder = create(tmp_path)
    folder.write_json("record.json", {})
    monkeypatch.setattr("opslib.records.folder.atomic_write", raising(ENOSPC))
    folder.write_text("more.txt", "more")
    assert f"what there was room for is in {folder.path}" in folder.say_loss()


def test_a_wrong_place_is_refused_before_anything_is_asked(tmp_path, monkeypatch):
    """A full disk keeps nobody from an answer; a place that this login may not write is a mistake to be mended."""
    monkeypatch.setattr(Path, "mkdir", raising(ENOSPC))
    assert "No space left on device" in create(tmp_path).say_loss()
    monkeypatch.setattr(Path, "mkdir", raising(EACCES))
    with pytest.raises(Refused, match="Permission denied"):
        create(tmp_path)
