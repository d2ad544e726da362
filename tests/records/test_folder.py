"""Record folders: names, atomic files, redaction at the door."""

import hashlib
import json
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import RunRecord, new_record
from opslib.errors import BadParameter, CouldNotFindOut, Refused, UnknownName
from opslib.records.evidence import EvidenceFile, keep_evidence, redact_again
from opslib.records.folder import RunFolder, atomic_write
from opslib.records.secrets import environment_secrets, reference_secrets, resolve_reference
from opslib.records.tail import EventTail

NOW = datetime(2026, 11, 29, 18, 15, 3, tzinfo=UTC)
CANARY = "kanarienvogel-4711"


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs", "rehearsal:healthy", "vllm@a", "90-deploy", NOW, secrets=[CANARY])


def test_name_says_when_where_what(folder):
    """A folder's name is UTC time, host, unit, runbook, safe for any file system."""
    assert folder.path.name == "20261129T181503Z-rehearsal-healthy-vllm-a-90-deploy"


def test_taken_name_gets_a_number(tmp_path):
    """Two runs in the same second have two folders."""
    names = [RunFolder.create(tmp_path, "h", "u", "r", NOW).path.name for _ in range(3)]
    assert names == ["20261129T181503Z-h-u-r", "20261129T181503Z-h-u-r-2", "20261129T181503Z-h-u-r-3"]


def test_name_cannot_leave_the_directory(tmp_path):
    """Dots and slashes of a name stay inside the directory of records."""
    assert RunFolder.create(tmp_path / "runs", "../..", "/etc", "", NOW).path.parent == tmp_path / "runs"


def test_folder_that_cannot_be_made(tmp_path):
    """A directory of records that can't be made is refused: the option, the part in the way, and what to give."""
    (tmp_path / "file").write_text("a file")
    said = rf"--runs-dir .*could not be made: {tmp_path}/file is no directory\. Next: give a directory"
    with pytest.raises(Refused, match=said):
        RunFolder.create(tmp_path / "file" / "runs", "h", "u", "r", NOW)


def test_unknown_folder(tmp_path):
    """A record that isn't there is an unknown name."""
    with pytest.raises(UnknownName):
        RunFolder.open(tmp_path / "none")


def test_everything_written_is_redacted(folder):
    """JSON, text, events and evidence lose known secrets at the door; binary evidence is kept as it is."""
    folder.write_json("a.json", {"x": [f"a {CANARY}"]})
    folder.write_text("a.txt", CANARY)
    folder.append_event({"kind": "line", "text": CANARY})
    folder.add_evidence("journal.jsonl", CANARY.encode())
    folder.add_evidence("figure.png", b"\x89PNG\xff\x00")
    for path in (path for path in folder.path.rglob("*") if path.is_file()):
        assert CANARY.encode() not in path.read_bytes()
    assert (folder.path / "evidence/figure.png").read_bytes() == b"\x89PNG\xff\x00"


def test_secret_learned_later_is_redacted_from_then_on(folder):
    """A secret that becomes known during the run is redacted from then on."""
    folder.add_secrets(["nachtigall-1"])
    folder.append_event({"text": "nachtigall-1"})
    assert next(folder.events())["text"] == "[redacted:known]"


def test_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    """A write that fails midway leaves the old file and no rest."""
    path = tmp_path / "a"
    atomic_write(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"old"


def test_full_disk_is_said_in_one_line(folder, monkeypatch):
    """A file that can't be written is an error of opslib with the file's name."""
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CouldNotFindOut, match=r"a\.json could not be written: No space left .*Next: make room"):
        folder.write_json("a.json", 1)


def test_events_of_several_threads_are_whole_lines(folder):
    """Events written at the same time don't mix."""

    def write(number: int) -> None:
        for _ in range(50):
            folder.append_event({"text": str(number) * 500})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(folder.events())) == 200


def test_torn_event_is_left_out(folder):
    """A last line that isn't whole (a killed run) doesn't hide the others."""
    folder.append_event({"text": "a"})
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"text": "b')
    assert [event["text"] for event in folder.events()] == ["a"]


def test_tail_hands_over_each_event_once(folder):
    """Following the event file gives each whole event once, also when a line comes in two parts."""
    tail = EventTail(folder.path)
    assert list(tail.read()) == []
    folder.append_event({"text": "a"})
    assert [event["text"] for event in tail.read()] == ["a"]
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"text": ')
        file.flush()
        assert list(tail.read()) == []
        file.write('"b"}\n[1]\nno json\n')
    assert [event["text"] for event in tail.read()] == ["b"]
    assert list(tail.read()) == []


def test_record_says_who_wrote_it(folder):
    """Who runs it, where, and in which process is filled in at the door."""
    folder.write_record(new_record("90-deploy", validate_parameters("90-deploy", {}), started_at=NOW))
    record = folder.read_record()
    assert record.user
    assert record.controller
    assert record.process_id
    assert json.loads((folder.path / "record.json").read_text())["started_at"] == "2026-11-29T18:15:03Z"


def test_broken_record_could_not_be_read(folder):
    """A record.json that is none is said in one line."""
    (folder.path / "record.json").write_text("{")
    with pytest.raises(CouldNotFindOut, match=r"record\.json is no record"):
        folder.read_record()


def test_references_are_resolved(tmp_path, monkeypatch):
    """A reference gives the variable's or the file's value, without the newline at its end."""
    monkeypatch.setenv("A_TOKEN", "abc")
    (tmp_path / "key").write_text("def\n")
    assert resolve_reference("env:A_TOKEN") == "abc"
    assert resolve_reference(f"file:{tmp_path}/key") == "def"


def test_missing_secrets_are_all_named():
    """Each reference without a value is named; no value is in the message."""
    with pytest.raises(BadParameter) as caught:
        reference_secrets(["env:NO_SUCH_A", "file:/no/such/b"])
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == ["env:NO_SUCH_A", "file:/no/such/b"]


def test_short_values_and_paths_of_the_environment_are_no_secrets():
    """A number, a switch or a path under a name that says secret would be found everywhere."""
    assert environment_secrets({"A_KEY": "1", "B_KEY": "/etc/key.pem", "C_KEY": "true"}) == ()


def test_keyring_is_asked_where_it_is_installed(monkeypatch):
    """`keyring:SERVICE/NAME` is looked up where the package is there, and refused with what to give where it isn't."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(BadParameter, match="the package keyring is not installed; give env:NAME or file:PATH"):
        resolve_reference("keyring:opslib/hub")
    known = {("opslib/a", "hub"): "s3cr3t"}
    monkeypatch.setitem(sys.modules, "keyring", SimpleNamespace(get_password=lambda *place: known.get(place)))
    assert resolve_reference("keyring:opslib/a/hub") == "s3cr3t"
    with pytest.raises(BadParameter, match="holds no such password"):
        resolve_reference("keyring:opslib/b")


def test_what_a_text_teaches_is_taken_out_of_earlier_files_too(folder):
    """A secret that a unit's text gives away later is taken out of what was written before, and digests are renewed."""
    at = datetime.now(UTC)
    files = [EvidenceFile(name="journal.txt", asked="journalctl", asked_at=at, text="bad key geheimes-wort-1")]
    manifest = keep_evidence(folder, "start", "u", files)
    folder.add_evidence("unit.txt", b"Environment=API_TOKEN=geheimes-wort-1")
    assert [path.name for path in redact_again(folder)] == ["journal.txt"]
    content = (manifest.parent / "journal.txt").read_bytes()
    assert content == b"bad key [redacted:known]"
    assert json.loads(manifest.read_text())["files"][0]["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_record_that_cannot_begin_leaves_no_folder(tmp_path, monkeypatch):
    """Where not even record.json can be written, no empty folder stays; one that holds something does."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    now = datetime.now(UTC)
    record = RunRecord(runbook="90-deploy", parameters={}, host="a", unit="vllm-a", started_at=now)
    kept = RunFolder.create(tmp_path, "a", "vllm-a", "90-deploy", now)
    kept.write_record(record)
    folder = RunFolder.create(tmp_path, "a", "vllm-a", "40-investigate-crash", now)
    monkeypatch.setattr("opslib.records.folder.atomic_write", full)
    for each in (folder, kept):
        with pytest.raises(CouldNotFindOut, match="No space left on device"):
            each.write_record(record)
    assert list(tmp_path.iterdir()) == [kept.path]
