"""Notifications: due or not, to places named by reference; one that fails is told and changes nothing."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opslib.app import headless
from opslib.app.notify import check_places, notify_end, send
from opslib.domain.headless import HeadlessOptions
from opslib.domain.notice import Notice
from opslib.domain.record import RunRecord
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter, UnknownName
from opslib.records.folder import RunFolder
from tests.app.test_headless import FINISH, RECORD, write_notebook
from tests.sink import sink

NOTICE = Notice(title="gpu-a: vllm-a critical", body="record: /runs/a")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the given cells as a runbook, on a host that is never asked."""
    monkeypatch.setenv("OPSLIB_NOTEBOOKS", str(tmp_path / "notebooks"))
    monkeypatch.setattr(headless, "check_alias", lambda alias: None)

    def run(state, **given):
        write_notebook(tmp_path / "notebooks", RECORD, FINISH % state)
        return headless.run_headless("40", given, runs_dir=tmp_path / "runs")

    return run


def ended(runs_dir, state, minute, **more):
    """A record folder of a run that ended so, and its record."""
    at = datetime(2026, 11, 29, 3, minute, tzinfo=UTC)
    folder = RunFolder.create(runs_dir, "gpu-a", "vllm-a", "90-deploy", at)
    first = RunRecord(runbook="90-deploy", parameters={}, host="gpu-a", unit="vllm-a", started_at=at, **more)
    record = first.finished(Outcome(state=State[state], reason="it is so"), at)
    folder.write_record(record)
    return record, folder


def test_a_change_of_outcome_is_told_and_sameness_is_not(tmp_path):
    """With notify_on=change the first run, a failure and the recovery are told; a second failure and dry runs aren't."""
    runs = [("OK", False), ("CRITICAL", False), ("CRITICAL", False), ("OK", True), ("CRITICAL", False), ("OK", False)]
    with sink() as ops:
        (tmp_path / "url").write_text(ops.url)
        options = HeadlessOptions(notify=(f"file:{tmp_path}/url",), notify_on="change")
        for minute, (state, is_dry_run) in enumerate(runs):
            record, folder = ended(tmp_path / "runs", state, minute, is_dry_run=is_dry_run)
            if not is_dry_run:
                notify_end(options, record, folder)
    assert [message["title"].split()[2] for message in ops.messages] == ["ok", "critical", "ok"]
    assert [message["type"] for message in ops.messages] == ["success", "failure", "success"]
    assert "outcome: critical (was ok): it is so" in ops.messages[1]["message"]
    assert f"record: {folder.path}" in ops.messages[-1]["message"]


def test_nobody_is_told_of_a_good_run(tmp_path):
    """By default only problems are told; that nobody was told is said."""
    options = HeadlessOptions(notify=("file:/no/such/url",))
    assert notify_end(options, *ended(tmp_path, "OK", 1)) == ("nobody was notified: notify_on=problem",)
    assert notify_end(HeadlessOptions(), *ended(tmp_path, "CRITICAL", 2)) == ()


def test_a_notification_is_in_the_record_and_changes_nothing(run, tmp_path, monkeypatch):
    """An outcome stays what it is when the place answers an error; the record says so, and holds no address."""
    with sink(status=500) as ops:
        monkeypatch.setenv("OPS_URL", ops.url)
        result = run("WARNING", notify=["env:OPS_URL"])
    assert (result.exit_code, result.outcome.reason, len(ops.messages)) == (1, "it is so", 1)
    record = json.loads((result.folder / "record.json").read_text())
    assert re.fullmatch(r"could not notify env:OPS_URL: .+", record["notes"][-1])
    events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["section"] == "notify"] == record["notes"]
    for path in filter(Path.is_file, result.folder.rglob("*")):
        assert ops.url.encode() not in path.read_bytes(), path


def test_a_run_that_is_refused_is_told_of(run, monkeypatch, tmp_path):
    """A schedule whose host was taken out of hosts.toml doesn't fail in silence."""
    with sink() as ops:
        monkeypatch.setenv("OPS_URL", ops.url)
        monkeypatch.setattr(
            headless, "check_alias", lambda alias: (_ for _ in ()).throw(UnknownName(f"no host {alias}"))
        )
        with pytest.raises(UnknownName):
            run("OK", notify="env:OPS_URL", host="gpu-z")
    assert [message["title"] for message in ops.messages] == ["gpu-z: 40 was refused"]
    assert "refused: no host gpu-z" in ops.messages[0]["message"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "file:{}: the file can't be read: No such file or directory"),
        ("", "file:{}: the file is empty"),
        ("nosuch://hunter2", "notify: file:{} holds no address that apprise knows"),
    ],
)
def test_a_place_of_no_use_is_refused_beforehand(tmp_path, content, sentence):
    """A missing, empty or unknown address is refused before the run, and never repeated."""
    place = tmp_path / "url"
    if content is not None:
        place.write_text(content)
    with pytest.raises(BadParameter) as caught:
        check_places([f"file:{place}"])
    assert str(caught.value).startswith(sentence.format(place))
    assert "hunter2" not in str(caught.value)


def test_each_place_has_its_sentence(tmp_path):
    """One place that fails doesn't keep the others from being told."""
    with sink() as ops:
        (tmp_path / "good").write_text(ops.url)
        (tmp_path / "bad").write_text("json://127.0.0.1:1/")
        said = send([f"file:{tmp_path}/bad", f"file:{tmp_path}/gone", f"file:{tmp_path}/good"], NOTICE, ("/runs/a",))
    assert [sentence.split(f"file:{tmp_path}/")[0] for sentence in said] == ["could not notify "] * 2 + ["notified "]
    assert ops.messages[0]["message"] == "record: [redacted:known]"
