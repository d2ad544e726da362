"""The list of records: newest first, honest about what was interrupted or can't be read."""

import os
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import Outcome, State
from opslib.records import index
from opslib.records.find import find_record
from opslib.records.folder import RunFolder
from opslib.records.index import INDEX_FILE, list_records

MISSHAPEN = '{"name": "investigate", "state": "ok", "started_at": "2026-11-29T12:00:00Z", "value": {"diagnosis": [1]}}'
NOW = datetime.now(UTC).replace(microsecond=0)


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


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"schema_version": 1', '"schema_version": 99, "more": 1', "a newer opslib wrote it (version 99"),
        ('"sections": []', f'"sections": [{MISSHAPEN}]', "section investigate: diagnosis: "),
        ('"started_at": "2026', '"started_at": "0001', "started_at: the year 1 is no year of a run"),
        ('"runbook"', "[" * 50_000, "Invalid JSON"),
    ],
)
def test_foreign_record_is_listed_with_what_is_foreign(tmp_path, before, after, why):
    """A record of another version, or edited by hand, is listed with the place that can't be read."""
    file = make(tmp_path).path / "record.json"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    entry = list_records(tmp_path)[0]
    assert entry.shown_state == "unreadable"
    assert why in entry.reason


def test_broken_record_is_listed(tmp_path):
    """A record that can't be read is listed with the reason, and hides no other."""
    (make(tmp_path).path / "record.json").write_text("nothing")
    shutil.copytree(make(tmp_path, 2).path, os.fsdecode(bytes(tmp_path) + b"/1-\xff"))
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "record.json")
    make(tmp_path, 1)
    (tmp_path / "stray").mkdir()
    assert [entry.shown_state for entry in list_records(tmp_path)] == [*["running"] * 2, "unreadable", "running"]


def test_a_sealed_record_without_its_facts_is_listed(tmp_path):
    """Who takes `record.json` away takes no record out of the list: its seal says that there was one."""
    folder = make(tmp_path).path
    (folder / "seal.json").write_text("{}")
    (folder / "record.json").unlink()
    assert [(entry.shown_state, entry.reason) for entry in list_records(tmp_path)] == [("unreadable", "no record.json")]
    assert find_record(tmp_path, "last") == find_record(tmp_path, str(folder)) == folder.resolve()


def test_no_directory_is_no_record(tmp_path):
    """Without a directory of records there are none."""
    assert list_records(tmp_path / "none") == []


def count_reads(monkeypatch) -> list[str]:
    """From now on, the names of the records that are read."""
    reads: list[str] = []
    read = index._read
    monkeypatch.setattr(index, "_read", lambda path: (reads.append(path.name), read(path))[1])
    return reads


def test_a_record_is_read_once(tmp_path, monkeypatch):
    """A record is read again only when it has changed; one that is gone is listed no more."""
    folders = [make(tmp_path, minutes) for minutes in range(3)]
    reads = count_reads(monkeypatch)
    assert len(list_records(tmp_path)) == len(reads) == 3
    reads.clear()
    record = folders[1].read_record()
    folders[1].write_record(record.finished(Outcome(state=State.OK, reason="it came up"), NOW))
    shutil.rmtree(folders[2].path)
    listed = list_records(tmp_path)
    assert [entry.shown_state for entry in listed] == ["ok", "running"]
    assert reads == [folders[1].path.name]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(4000)])
def test_a_damaged_index_is_made_anew(tmp_path, monkeypatch, content):
    """Whatever stands in the index's file, the list is right, and the next one is fast again."""
    make(tmp_path)
    (tmp_path / INDEX_FILE).write_bytes(content)
    assert len(list_records(tmp_path)) == 1
    reads = count_reads(monkeypatch)
    assert len(list_records(tmp_path)) == 1
    assert reads == []


def test_entries_that_say_nothing_are_made_anew(tmp_path, monkeypatch):
    """An index whose rows were spoilt is thrown away."""
    make(tmp_path)
    expected = list_records(tmp_path)
    with sqlite3.connect(tmp_path / INDEX_FILE) as connection:
        connection.execute("UPDATE records SET entry = '{'")
    connection.close()
    assert list_records(tmp_path) == expected
    assert list_records(tmp_path) == expected


def test_an_index_of_other_code_is_made_anew(tmp_path):
    """An index made when an entry had other fields is not read."""
    make(tmp_path)
    expected = list_records(tmp_path)
    with sqlite3.connect(tmp_path / INDEX_FILE) as connection:
        connection.execute("PRAGMA user_version = 1")
        connection.execute("UPDATE records SET entry = '{}'")
    connection.close()
    assert list_records(tmp_path) == expected


def test_no_index_can_be_written(tmp_path, monkeypatch):
    """Where no index can be kept, the records are listed all the same, and nothing is said."""
    make(tmp_path)
    (tmp_path / INDEX_FILE).mkdir()
    assert len(list_records(tmp_path)) == 1

    def refuse(*_args, **_options):
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert len(list_records(tmp_path)) == 1


def test_a_moved_directory_keeps_its_index(tmp_path, monkeypatch):
    """The records are named by where they lie now, also when the whole directory was moved."""
    make(tmp_path / "a")
    list_records(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    reads = count_reads(monkeypatch)
    (entry,) = list_records(tmp_path / "b")
    assert (Path(entry.folder).parent, reads) == (tmp_path / "b", [])
