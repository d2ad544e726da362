"""The gate of a deploy: it goes on only with a checkpoint that was verified and is whole."""

from types import SimpleNamespace

import pytest

from opslib.app.run import Run
from opslib.app.sections.verify import checkpoint_of, proof, shards_by_state, verify_download
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.errors import CouldNotFindOut, HostUnreachable, Refused
from opslib.records.folder import RunFolder
from tests.checkpoint_damage import damage
from tests.fakes import FakeHost
from tests.real_checkpoint import write_model_in

SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """A run of a runbook about the small model under the models directory, optionally damaged."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(runbook, *steps, **given):
        from datetime import UTC, datetime

        model = write_model_in("local-dir", tmp_path / "models/m")
        for step in steps:
            damage(model, step)
        parameters = validate_parameters(runbook, {"model": "m", **given})
        host = FakeHost(models_dir=str(tmp_path / "models"), state_dir=str(tmp_path / "var"))
        now = datetime.now(UTC)
        folder = RunFolder.create(tmp_path / "runs", "fake", "u", runbook, now)
        return Run(parameters, host, folder, new_record(runbook, parameters, host.settings, started_at=now))

    return make


def test_the_receipt_is_a_recorded_value(begin):
    """What was verified, how deep, when, with which result, and a fingerprint that changes with any file."""
    run = begin("10-verify-download", level="digest")
    verify_download(run)
    value = run.results["verify-download"].value
    receipt = value["receipt"]
    assert (receipt["state"], receipt["level"], len(receipt["fingerprint"])) == ("ok", "digest", 64)
    assert receipt["verified_at"].endswith("+00:00")
    assert [shard["state"] for shard in value["shards"]] == ["ok"] * 3
    damage(run.host.settings.models_dir and _model(run), ["touch", SECOND])
    verify_download(run)
    assert run.results["verify-download"].value["receipt"]["fingerprint"] != receipt["fingerprint"]


def _model(run):
    from pathlib import Path

    return Path(run.host.settings.models_dir) / "m"


def test_a_deploy_stops_at_a_broken_checkpoint(begin):
    """The section stops the run; what comes after refuses too, were its cell run all the same."""
    run = begin("90-deploy", ["remove", SECOND])
    verify_download(run)
    assert run.stopped_by == "verify-download"
    with pytest.raises(Refused, match="not whole"):
        checkpoint_of(run)


def test_a_deploy_stops_where_a_file_could_not_be_read(begin, monkeypatch):
    """Unknown is no ground to build on: exit code 3."""
    run = begin("90-deploy")
    monkeypatch.setattr("opslib.onhost.verify_files.os.access", lambda path, mode: not str(path).endswith(SECOND))
    verify_download(run)
    assert (run.stopped_by, run.results["verify-download"].exit_code) == ("verify-download", 3)
    with pytest.raises(CouldNotFindOut):
        checkpoint_of(run)


def test_a_deploy_whose_verification_was_skipped_verifies_now(begin):
    """Leaving a cell out doesn't open the gate."""
    with pytest.raises(Refused):
        checkpoint_of(begin("90-deploy", ["remove", SECOND]))


def test_an_older_answer_does_not_outlive_a_failed_one(begin, monkeypatch):
    """Asked again in vain, nothing is known any more."""
    run = begin("90-deploy")
    verify_download(run)
    assert "checkpoint" in run.answers

    def lost(*_, **__):
        raise HostUnreachable("lost")

    monkeypatch.setattr("opslib.app.sections.verify.verify_checkpoint", lost)
    verify_download(run)
    assert "checkpoint" not in run.answers
    assert run.stopped_by == "verify-download"


def test_a_plan_of_a_broken_checkpoint_may_still_be_made(begin):
    """Only a deploy is stopped: what a repaired download will need can be planned meanwhile."""
    assert checkpoint_of(begin("20-plan-memory", ["remove", SECOND])).state == "critical"


def test_what_is_there_is_shown_even_where_it_is_broken(begin):
    """The picture matters most when something is missing; before the verification there is none."""
    run = begin("10-verify-download", ["remove", SECOND])
    assert "nothing was verified" in shards_by_state(run).text
    assert "nothing was verified" in proof(run).text
    verify_download(run)
    assert SECOND in shards_by_state(run).text
    assert (run.folder.path / "evidence/shards.png").is_file()
    assert "no digest was computed" in proof(run).text


def test_progress_is_told_and_painted(begin, monkeypatch):
    """In the record every few seconds, in the notebook each second, if it takes that long."""
    painted = []
    monkeypatch.setattr("opslib.app.sections.verify.Screen", lambda: SimpleNamespace(paint=painted.append))
    monkeypatch.setattr("opslib.app.sections.verify.TOLD_S", 0)
    monkeypatch.setattr("opslib.app.sections.verify.PAINTED_S", 0)
    run = begin("10-verify-download", level="digest")
    verify_download(run)
    events = (run.folder.path / "events.jsonl").read_text()
    assert "digest: 10 of 10 files" in events
    assert "digest: 10 of 10 files" in painted[-1].text
