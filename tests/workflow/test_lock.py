"""The lock of a unit: one holder at a time, named to all others, freed by every kind of end."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from opslib.domain.host import HostSettings
from opslib.domain.lock import LockHolder, lock_path, locks_dir
from opslib.errors import LockHeld, LockLost, PrivilegeRefused
from opslib.workflow.lock import hold_lock
from tests.conftest import opened

UNIT = "vllm-locked"
BOTH = pytest.mark.parametrize("kind", ["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)])


def holder(user: str) -> LockHolder:
    return LockHolder(
        user=user,
        controller="desk",
        process_id=7,
        runbook="90-deploy",
        record="r",
        since=datetime(2026, 3, 1, tzinfo=UTC),
    )


def settings_of(request: pytest.FixtureRequest, kind: str) -> HostSettings:
    return request.getfixturevalue(kind).settings


def wait_until(question, limit_s: float = 12.0) -> bool:
    give_up_at = time.monotonic() + limit_s
    while not question():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.1)
    return True


@BOTH
def test_a_second_holder_is_refused_and_told_of_the_first(kind, request):
    """Who asks second is refused with the first one's name; after the end it is free, and nothing is left behind."""
    settings = settings_of(request, kind)
    with opened(settings) as first, opened(settings) as second:
        with hold_lock(first, UNIT, holder("ana")) as lock:
            lock.require()
            with pytest.raises(LockHeld, match=r"ana on desk \(process 7\) with 90-deploy since 2026-03-01") as refusal:
                hold_lock(second, f"{UNIT}.service", holder("bob")).__enter__()
            assert refusal.value.exit_code == 4
            with hold_lock(second, "another-unit", holder("bob")):
                pass
        with pytest.raises(LockLost, match="it was freed"):
            lock.require()
        with hold_lock(second, UNIT, holder("bob")) as lock:
            assert lock.left_over is None
        assert second.run(("cat", "--", lock_path(settings, UNIT)), sudo=True).exit_status != 0


@BOTH
def test_the_lock_dies_with_its_holder(kind, request):
    """Where the holder's process is killed the lock is free within two seconds, and the next one is told of it."""
    settings = settings_of(request, kind)
    code = (
        "import sys; from opslib.domain.host import HostSettings; from opslib.domain.lock import LockHolder\n"
        "from opslib.hosts import open_host; from opslib.workflow.lock import hold_lock; import time\n"
        "settings, holder = sys.stdin.readline(), sys.stdin.readline()\n"
        f"with hold_lock(open_host(HostSettings.model_validate_json(settings)), {UNIT!r},"
        " LockHolder.model_validate_json(holder)):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    given = f"{settings.model_dump_json()}\n{holder('ana').model_dump_json()}\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        process.stdin.write(given)
        process.stdin.flush()
        assert process.stdout.readline() == "held\n"
        with opened(settings) as host:
            with pytest.raises(LockHeld, match="ana"):
                hold_lock(host, UNIT, holder("bob")).__enter__()
            os.kill(process.pid, signal.SIGKILL)

            def is_free() -> bool:
                try:
                    with hold_lock(host, UNIT, holder("bob")) as lock:
                        assert lock.left_over == holder("ana")
                        return True
                except LockHeld:
                    return False

            assert wait_until(is_free, 2.0)
    finally:
        process.kill()
        process.communicate()


@BOTH
def test_a_lost_link_is_told_and_the_lock_taken_again(kind, request):
    """A cut connection loses the lock; it is taken again, and said whether somebody may have had it meanwhile."""
    settings, told = settings_of(request, kind), []
    with opened(settings) as host, hold_lock(host, UNIT, holder("ana"), on_change=told.append) as lock:
        host.close()
        assert wait_until(lambda: lock.n_lost == 1)
        lock.require()
        assert wait_until(lambda: len(told) == 2)
    assert "is lost" in told[0]
    assert told[1].endswith("is held again; nobody had it meanwhile")


@BOTH
def test_a_lock_that_another_took_meanwhile_is_lost_for_good(kind, request):
    """Where somebody else has the lock when the link is back, the run is told who, and goes no further."""
    settings, told = settings_of(request, kind), []
    with (
        opened(settings) as host,
        opened(settings) as other,
        hold_lock(host, UNIT, holder("ana"), on_change=told.append) as lock,
    ):
        host.close()
        assert wait_until(lambda: not lock.is_held)
        with hold_lock(other, UNIT, holder("bob")), pytest.raises(LockLost, match="bob on desk"):
            lock.require()
    assert "could not be taken again" in told[-1]


@BOTH
def test_a_removed_lock_file_is_noticed(kind, request):
    """Whoever removes the file of a held lock makes it void: that is told, and a new one is taken."""
    settings, told = settings_of(request, kind), []
    with opened(settings) as host, hold_lock(host, UNIT, holder("ana"), on_change=told.append) as lock:
        host.run(("rm", "--force", lock_path(settings, UNIT)), sudo=True)
        assert wait_until(lambda: len(told) == 2)
        assert lock.is_held
    assert told[1].endswith("somebody may have had it meanwhile")


@pytest.mark.realhost
def test_every_login_takes_part(debian):
    """Root, a login with sudo and one without share a unit's lock; without the directory the last one is refused."""
    bare = debian.nosudo_settings.model_copy(update={"sudo": False, "state_dir": "/var/lib/opslib-bare"})
    with (
        opened(bare) as host,
        pytest.raises(PrivilegeRefused, match="mkdir --parents --mode=1777 /var/lib/opslib-bare"),
    ):
        hold_lock(host, UNIT, holder("cleo")).__enter__()
    logins = [debian.settings, debian.ops_settings, debian.nosudo_settings.model_copy(update={"sudo": False})]
    for first in logins:
        with opened(first) as host, hold_lock(host, UNIT, holder("ana")):
            for second in logins:
                with opened(second) as other, pytest.raises(LockHeld, match="ana"):
                    hold_lock(other, UNIT, holder("bob")).__enter__()
    assert debian.ssh("stat", "--format=%a", locks_dir(debian.settings)).stdout.strip() == "1777"


@pytest.mark.realhost
def test_a_left_over_of_another_login_is_taken_over(debian):
    """What root left behind a login without rights takes over, and the other way round."""
    bare = debian.nosudo_settings.model_copy(update={"sudo": False})
    for dead, living in ((debian.settings, bare), (bare, debian.settings)):
        with opened(dead) as host, hold_lock(host, UNIT, holder("ana")):
            pass
        left = json.dumps({"holder": holder("ana").model_dump(mode="json"), "pid": 1, "started_ticks": "no"})
        path = lock_path(dead, UNIT)
        owner = dead.user or "root"
        made = f"umask 0; printf %s '{left}' > {path}; chown {owner} {path}"
        assert debian.ssh("sh", "-c", made).returncode == 0
        with opened(living) as host, hold_lock(host, UNIT, holder("bob")) as lock:
            assert lock.left_over == holder("ana")
        with opened(dead) as host, hold_lock(host, UNIT, holder("cleo")) as lock:
            assert lock.left_over is None
        debian.ssh("rm", "--force", path)


def test_links_and_pipes_are_no_locks(tmp_path):
    """A lock file that is a link or no plain file is refused, and what it leads to is left alone."""
    settings = HostSettings(alias="here", address="local", sudo=False, state_dir=str(tmp_path))
    path = tmp_path / "locks" / f"{UNIT}.lock"
    path.parent.mkdir()
    (tmp_path / "precious").write_text("precious")
    with opened(settings) as host:
        path.symlink_to(tmp_path / "precious")
        with pytest.raises(PrivilegeRefused, match="the lock can't be taken"):
            hold_lock(host, UNIT, holder("ana")).__enter__()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(PrivilegeRefused, match="is no plain file"):
            hold_lock(host, UNIT, holder("ana")).__enter__()
    assert (tmp_path / "precious").read_text() == "precious"
