"""A run's lock: taken before anything is changed, kept, freed at its end, and taken again by a cell that is run again."""

import time

import pytest

from opslib.app.locking import LOCK, lock_unit, require_lock
from opslib.app.sections import begin_run, outcome, preflight
from opslib.domain.host import HostSettings
from opslib.domain.states import State
from opslib.errors import LockHeld
from opslib.hosts import open_host
from opslib.workflow.lock import hold_lock


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path))
    return begin_run("30-launch", {"host": "rehearsal:healthy"})


def other_operator(settings: HostSettings, holder):
    return hold_lock(open_host(settings), "vllm-minimax", holder.model_copy(update={"user": "bob"}))


def test_the_lock_lasts_as_long_as_the_run(run):
    """The preflight takes it, the run's end frees it, and a changing cell that is run again takes it again."""
    preflight(run)
    assert run.results["preflight"].state is State.OK
    lock = run.answers[LOCK]
    assert lock_unit(run) is lock
    with pytest.raises(LockHeld, match="30-launch"):
        other_operator(run.host.settings, lock.holder).__enter__()
    outcome(run)
    assert not lock.is_held
    with other_operator(run.host.settings, lock.holder), pytest.raises(LockHeld, match="bob on"):
        require_lock(run)
    require_lock(run)
    assert run.answers[LOCK].is_held
    outcome(run)


def test_a_lost_lock_is_in_the_record(run):
    """A link that failed is told while it lasts, and the record keeps that the lock was lost and taken again."""
    lock_unit(run)
    lock = run.answers[LOCK]
    run.host.close()
    deadline = time.monotonic() + 15
    while not (lock.n_lost and lock.is_held) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    outcome(run)
    assert [note.partition(":")[0] for note in run.record.notes] == [
        "the lock of vllm-minimax is lost",
        "the lock of vllm-minimax is held again; nobody had it meanwhile",
    ]
    assert any("is lost" in str(event.get("text")) for event in run.folder.events())


def test_a_new_run_of_the_same_notebook_takes_over(run):
    """Whoever runs the first cell again is not kept out by their own run before, which never ended."""
    lock_unit(run)
    again = begin_run("30-launch", {"host": "rehearsal:healthy"})
    assert lock_unit(again).is_held
    assert LOCK not in run.answers
    outcome(again)


def test_a_run_without_preflight_takes_it_before_its_first_change(run):
    """Whoever skips the preflight's cell is refused all the same while somebody else is at work."""
    require_lock(run)
    holder = run.answers[LOCK].holder
    outcome(run)
    with other_operator(run.host.settings, holder):
        preflight(run)
    assert run.stopped_by == "preflight"
    assert run.results["preflight"].exit_code == 4
    assert "bob on" in run.results["preflight"].summary
