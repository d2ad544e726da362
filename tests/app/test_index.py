"""The index and the review: runbooks by question, records by what they were about, links that lead somewhere."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opslib.app.catalogue import list_runbooks
from opslib.app.index import show_hosts, show_records, show_runbooks
from opslib.app.reviewing import records_frame, select_records
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder

START = datetime(2026, 11, 29, 12, tzinfo=UTC)
RUNS = [  # host, runbook, how it ended
    ("gpu-a", "10-verify-download", State.OK),
    ("gpu-a", "30-launch", State.CRITICAL),
    ("gpu-b", "30-launch", State.OK),
]


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    for minutes, (host, runbook, state) in enumerate(RUNS):
        started_at = START + timedelta(minutes=minutes)
        folder = RunFolder.create(tmp_path / "runs", host, "vllm-minimax", runbook, started_at)
        record = new_record(runbook, validate_parameters(runbook, {"host": host}), started_at=started_at)
        folder.write_record(record.finished(Outcome(state=state, reason="it is so"), started_at + timedelta(seconds=9)))
        folder.write_text("record.html", "page")
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("wanted", "n_found"),
    [
        ({}, 3),
        ({"host": "gpu-a"}, 2),
        ({"runbook": "launch"}, 2),
        ({"runbook": "30", "state": "ok"}, 1),
        ({"unit": "vllm-minimax.service", "limit": 2}, 2),
        ({"unit": "vllm-other"}, 0),
    ],
)
def test_records_are_chosen_newest_first(runs_dir, wanted, n_found):
    """A record is listed when it matches all that is asked; the newest stands first."""
    found = select_records(runs_dir, **wanted)
    assert len(found) == n_found
    assert found == sorted(found, key=lambda entry: entry.started_at, reverse=True)


def test_records_are_a_frame(runs_dir):
    """The DataFrame has one row per record, with typed times and durations."""
    frame = records_frame(select_records(runs_dir))
    assert list(frame["state"]) == ["ok", "critical", "ok"]
    assert list(frame["duration_s"]) == [9.0, 9.0, 9.0]
    assert records_frame([]).empty


def test_links_of_the_index_lead_somewhere(runs_dir):
    """Every link of the index is relative to the notebooks and names a file that is there."""
    links = re.findall(r'href="([^"]+)"', show_records().html)
    assert len(links) == len(RUNS)
    assert all((Path.cwd() / link).is_file() for link in links)
    assert all((Path.cwd() / link).is_file() for link in re.findall(r'href="([^"]+)"', show_runbooks().html))


def test_index_names_every_runbook_by_its_question(runs_dir):
    """Each runbook is there with its question and what it changes; the practice host is always there."""
    told = show_runbooks().text
    assert all(name in told for name in list_runbooks())
    assert "Why did the unit crash?" in told
    assert "Installs and restarts one unit" in told
    assert "rehearsal" in show_hosts().text
