"""The list of records: newest first, honest about what was interrupted or can't be read."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
from opslib.records.index import list_records

NOW = datetime(2026, 11, 29, 18, 15, 3, tzinfo=UTC)


def make(runs_dir, minutes: int = 0, **changes) -> RunFolder:
    started_at = NOW + timedelta(minutes=minutes)
    folder = RunFolder.create(runs_dir, "h", "u", "90-deploy", started_at)
    record = new_record("90-deploy", validate_parameters("90-deploy", {}), started_at=started_at)
    folder.write_record(record.model_copy(update=changes))
    return folder


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_newest_first(tmp_path):
    """Records are listed by their start, newest first."""
    for minutes in (1, 3, 2):
        make(tmp_path, minutes)
    starts = [entry.started_at for entry in list_records(tmp_path)]
    assert starts == sorted(starts, reverse=True)


def test_run_of_a_gone_process_is_interrupted(tmp_path):
    """A record that says running while its process is gone reads as interrupted."""
    make(tmp_path, 1, process_id=ended_process())
    make(tmp_path, 2)
    assert [entry.shown_state for entry in list_records(tmp_path)] == ["running", "interrupted"]


def test_process_of_another_machine_is_not_judged(tmp_path):
    """Whether a process on another controller lives can't be seen from here."""
    make(tmp_path, process_id=ended_process(), controller="elsewhere.example")
    assert list_records(tmp_path)[0].status == "running"


def test_outcome_is_shown(tmp_path):
    """A finished record shows its outcome's state and reason."""
    make(tmp_path, status="finished", outcome=Outcome(state=State.WARNING, reason="tight"), ended_at=NOW)
    entry = list_records(tmp_path)[0]
    assert (entry.shown_state, entry.reason) == ("warning", "tight")


def test_broken_record_is_listed(tmp_path):
    """A record that can't be read is listed with the reason, and hides no other."""
    (make(tmp_path).path / "record.json").write_text("nothing")
    make(tmp_path, 1)
    (tmp_path / "stray").mkdir()
    assert [entry.shown_state for entry in list_records(tmp_path)] == ["running", "unreadable"]


def test_no_directory_is_no_record(tmp_path):
    """Without a directory of records there are none."""
    assert list_records(tmp_path / "none") == []
