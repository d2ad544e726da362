"""Evidence with its manifest, and what earlier records know."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.snapshot import Snapshot
from opslib.domain.states import Outcome, State
from opslib.records.earlier import last_good, seen_before
from opslib.records.evidence import EvidenceFile, keep_evidence
from opslib.records.folder import RunFolder

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path, "h1", "vllm", "40-investigate-crash", AT, secrets=(SECRET,))


def test_each_file_is_listed_with_its_digest(folder):
    """What lies there can be checked later; what could not be had says why; nothing secret gets in."""
    files = [
        EvidenceFile(name="journal.jsonl", asked=f"journalctl {SECRET}", asked_at=AT, text=f"token {SECRET}\n"),
        EvidenceFile(name="kernel.txt", asked="journalctl -k", asked_at=AT, problem="sudo: a password is required"),
        EvidenceFile(name="port.json", asked="ss", asked_at=AT),
    ]
    path = keep_evidence(folder, "a" * 32, "vllm", files)
    assert path == folder.path / "evidence" / ("a" * 32) / "manifest.json"
    manifest = json.loads(path.read_text())
    journal, kernel, port = manifest["files"]
    content = (path.parent / "journal.jsonl").read_bytes()
    assert journal["sha256"] == hashlib.sha256(content).hexdigest()
    assert journal["bytes"] == len(content)
    assert (kernel["file"], kernel["problem"]) == (None, "sudo: a password is required")
    assert port["problem"] == "the answer is empty"
    assert SECRET not in path.read_text() + content.decode()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["journal.jsonl", "manifest.json"]


def keep_record(runs_dir, hour, *, state, cause=None, snapshot=None):
    started_at = AT.replace(hour=hour)
    folder = RunFolder.create(runs_dir, "h1", "vllm", "90-deploy", started_at)
    value = {"snapshot": snapshot.model_dump(mode="json")} if snapshot else {}
    section = SectionRecord(name="launch", state=state, value=value, started_at=started_at)
    outcome = Outcome(state=state, reason=f"ended at {hour}")
    record = RunRecord(runbook="90-deploy", parameters={}, host="h1", unit="vllm", started_at=started_at)
    record = record.with_section(section).finished(outcome, started_at).model_copy(update={"cause": cause})
    folder.write_record(record)
    return folder.path.name


def test_the_newest_good_start_is_compared_with(tmp_path):
    """Of the same host and unit, with what it ran with then; a crash in between is passed over."""
    snapshot = Snapshot(taken_at=AT, argv=("vllm", "serve", "m"))
    keep_record(tmp_path, 1, state=State.OK, snapshot=snapshot)
    good = keep_record(tmp_path, 2, state=State.OK, snapshot=snapshot.model_copy(update={"kernel": "6.1"}))
    bad = keep_record(tmp_path, 3, state=State.CRITICAL, cause="gpu-memory/weights")
    found = last_good(tmp_path, "h1", "vllm")
    assert (found.folder, found.snapshot.kernel) == (good, "6.1")
    assert last_good(tmp_path, "h2", "vllm") is None
    assert last_good(tmp_path / "none", "h1", "vllm") is None
    (seen,) = seen_before(tmp_path, "gpu-memory/weights")
    assert (seen.folder, seen.host, seen.summary) == (bad, "h1", "ended at 3")
    assert seen_before(tmp_path, "gpu-memory/weights", besides=bad) == ()
    assert seen_before(tmp_path, "unknown") == ()
