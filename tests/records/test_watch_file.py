"""The event file of a watch: whole lines, also on a full disk."""

import pytest

from opslib.records.watch_file import WatchFile, read_watch_file, watch_files
from tests.rig.disk import small_disk


def test_secrets_stay_at_the_door(tmp_path):
    """What is known as secret is not written."""
    file = WatchFile(tmp_path / "watch-launch.jsonl", secrets=["hunter2hunter2"])
    file.append({"event": "journal", "entry": {"message": "key hunter2hunter2"}})
    assert "hunter2" not in file.path.read_text()


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 KiB."""
    with small_disk(tmp_path, 64) as place:
        yield place


def test_a_full_disk_loses_nothing_that_comes_back(disk, monkeypatch):
    """While nothing can be written the events are kept, said to be, and written in order once there is room."""
    monkeypatch.setattr("opslib.records.watch_file._AGAIN_S", 0.0)
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * 40_000)
    file = WatchFile(disk / "watch-launch.jsonl")
    for n in range(400):
        file.append({"event": "tick", "n": n, "text": "x" * 60})
    assert "No space left on device" in file.problem
    assert all(isinstance(event["n"], int) for event in read_watch_file(file.path))  # no torn line
    assert file.path.read_bytes().endswith(b"\n")
    ballast.unlink()
    for n in range(400, 410):
        file.append({"event": "tick", "n": n, "text": "x"})
    assert [event["n"] for event in read_watch_file(file.path)] == list(range(410))
    assert (file.problem, file.n_lost) == ("", 0)
    assert watch_files(disk) == (file.path,)


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    """A disk that stays full costs events, not memory; how many is said."""
    monkeypatch.setattr("opslib.records.watch_file._KEPT_LINES", 10)
    monkeypatch.setattr("opslib.records.watch_file._AGAIN_S", 0.0)
    path = tmp_path / "there" / "watch-launch.jsonl"
    file = WatchFile(path)
    for n in range(15):
        file.append({"n": n})
    path.parent.mkdir()
    file.flush()
    assert [event["n"] for event in read_watch_file(path)] == list(range(5, 15))
    assert file.problem == "5 events could not be written"
