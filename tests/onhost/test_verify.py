"""The on-host listing."""

import json
import os

from opslib.onhost import verify
from tests.checkpoints import write_model


def listing(path, capsys, level="extents"):
    assert verify.main({"path": str(path), "level": level}) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_progress_comes_before_one_listing(tmp_path, capsys):
    """Every line is one JSON object; the last holds everything."""
    *progress, last = listing(write_model(tmp_path), capsys)
    assert progress[-1]["files"] == progress[-1]["n_files"] == 3
    assert (last["event"], len(last["shards"]), last["indices"][0]["differences"]) == ("listing", 3, [])
    assert last["download"] == [{"path": "config.json", "commit": "abc123", "etag": "etag", "noted_at": "1764403200.0"}]


def test_odd_directories_do_not_stop_it(tmp_path, capsys):
    """Symlink loops, pipes, undecodable and strange names are listed; nothing is opened that could block."""
    write_model(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "model-00009-of-00009.safetensors")
    (tmp_path / 'it\'s "a"\nname ü').write_text("x")
    (tmp_path / os.fsdecode(b"\xff.json")).write_text("{}")
    last = listing(tmp_path, capsys)[-1]
    assert "\ufffd.json" in [entry["path"] for entry in last["files"]]
    assert len(last["shards"]) == 3


def test_a_missing_directory_is_said(tmp_path, capsys):
    """Neither a crash nor an empty listing."""
    assert listing(tmp_path / "none", capsys)[-1]["problem"] == "no such directory"
    (tmp_path / "file").touch()
    assert listing(tmp_path / "file", capsys)[-1]["problem"] == "not a directory"


def test_an_unknown_level_is_refused(tmp_path):
    """A level that the program doesn't know is not silently a lower one."""
    assert verify.main({"path": str(tmp_path), "level": "magic"}) == 2
