"""The controller's lock of a unit: one holder who is named, whatever checkout; freed with its process."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from opslib.domain.host import HostSettings
from opslib.domain.lock import LockHolder
from opslib.errors import LockHeld, PrivilegeRefused
from opslib.records.lock import controller_lock_path, hold_controller_lock, locks_dir

GPU_A = HostSettings(alias="gpu-a", address="10.0.0.7")


def holder(**more):
    facts = {"user": "ana", "controller": os.uname().nodename, "process_id": os.getpid(), "runbook": "90-deploy"}
    return LockHolder(**{**facts, "record": "20260301-gpu-a", "since": datetime(2026, 3, 1, tzinfo=UTC), **more})


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state directory of its own."""
    monkeypatch.delenv("OPSLIB_LOCKS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_second_is_refused_with_the_first_ones_name():
    """While one holds it, another is refused, told who, from where, with what and since when; exit code 4."""
    with hold_controller_lock(GPU_A, "vllm-a", holder()) as left_behind:
        assert left_behind is None
        with pytest.raises(LockHeld) as caught, hold_controller_lock(GPU_A, "vllm-a.service", holder(user="bo")):
            pass
    words = f"ana on {os.uname().nodename} (process {os.getpid()}) with 90-deploy since 2026-03-01 00:00:00 UTC"
    assert words in str(caught.value)
    assert "record 20260301-gpu-a" in str(caught.value)
    assert caught.value.exit_code == 4


def test_it_is_free_again_afterwards():
    """A lock that was freed in order names nobody to the next."""
    for _ in range(2):
        with hold_controller_lock(GPU_A, "vllm-a", holder()) as left_behind:
            assert left_behind is None


def test_other_units_and_hosts_are_others():
    """Another unit, host or port is another lock; another alias of the same address is the same."""
    same = GPU_A.model_copy(update={"alias": "from-another-checkout"})
    assert controller_lock_path(same, "vllm-a") == controller_lock_path(GPU_A, "vllm-a.service")
    others = [
        controller_lock_path(GPU_A, "vllm-b"),
        controller_lock_path(GPU_A.model_copy(update={"address": "10.0.0.8"}), "vllm-a"),
        controller_lock_path(GPU_A.model_copy(update={"port": 2222}), "vllm-a"),
    ]
    assert len({controller_lock_path(GPU_A, "vllm-a"), *others}) == 4


SCRIPT = """
import sys, time
from opslib.domain.lock import LockHolder
from opslib.domain.host import HostSettings
from opslib.records.lock import hold_controller_lock
holder = LockHolder.model_validate_json(sys.argv[1])
with hold_controller_lock(HostSettings(alias="other-alias", address="10.0.0.7"), "vllm-a", holder):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_dead_holder_is_taken_over():
    """A process that is killed frees its lock at once; who takes it is told whose it was."""
    bo = holder(user="bo", process_id=1)
    with subprocess.Popen([sys.executable, "-c", SCRIPT, bo.model_dump_json()], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld, match="bo on "), hold_controller_lock(GPU_A, "vllm-a", holder()):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait(10)
    with hold_controller_lock(GPU_A, "vllm-a", holder()) as left_behind:
        assert left_behind == bo
    with hold_controller_lock(GPU_A, "vllm-a", holder()) as left_behind:
        assert left_behind is None


def test_an_unreadable_name_is_no_obstacle(state):
    """A torn name file neither keeps the lock nor breaks the run; who holds it is then not named."""
    path = controller_lock_path(GPU_A, "vllm-a")
    path.parent.mkdir(parents=True)
    path.with_suffix(".json").write_text('{"user": "an')
    with hold_controller_lock(GPU_A, "vllm-a", holder()) as left_behind:
        assert left_behind is None
        path.with_suffix(".json").write_text("")
        with (
            pytest.raises(LockHeld, match="somebody who is not named"),
            hold_controller_lock(GPU_A, "vllm-a", holder()),
        ):
            pass


def test_where_no_lock_can_be_made_the_run_is_refused(state):
    """A state directory that may not be written is a refusal that names it and the variable that moves it."""
    state.write_text("a file in the way")
    said = r"opslib/locks.* Next: set \$OPSLIB_LOCKS"
    with pytest.raises(PrivilegeRefused, match=said), hold_controller_lock(GPU_A, "vllm-a", holder()):
        pass


def test_where_locks_lie(state, monkeypatch, tmp_path):
    """$OPSLIB_LOCKS, else the state directory of the login: never in a checkout."""
    assert locks_dir() == state / "opslib/locks"
    monkeypatch.setenv("OPSLIB_LOCKS", str(tmp_path / "shared"))
    assert locks_dir() == tmp_path / "shared"
