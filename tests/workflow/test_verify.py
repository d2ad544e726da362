"""Verifying a checkpoint on a host."""

import json

import pytest

from opslib.errors import CouldNotFindOut, UnexpectedAnswer
from opslib.workflow.verify import verify_checkpoint
from tests.checkpoints import write_model
from tests.fakes import FakeHost


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
