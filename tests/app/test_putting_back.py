"""A run that is ended in the middle of its changes leaves the host as it found it, and its record says so."""

import os
import signal
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from opslib.app.headless import run_headless
from opslib.app.putting_back import note_found, put_back
from opslib.domain.launch import LaunchState
from opslib.domain.record import RunRecord
from opslib.errors import HostUnreachable
from opslib.hosts import open_host
from opslib.workflow.install import apply_plan, plan_install, read_unit_text
from opslib.workflow.launch import show_unit, start_unit, stop_unit
from tests.app.test_notify import ended

UNIT = "opslib-put-back"
OLD = "[Service]\nExecStart=/bin/sleep 600\n"
NEW = "[Service]\nExecStart=/bin/sleep 601\n"


@pytest.fixture(params=["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)])
def host(request):
    """Each kind of host, without the unit afterwards."""
    host = open_host(request.getfixturevalue(request.param).settings)
    yield host
    if show_unit(host, UNIT).active_state == "active":
        stop_unit(host, UNIT)
    host.run(("rm", "--force", f"{host.settings.unit_dir}/{UNIT}.service"), sudo=True)
    host.run(("systemctl", "daemon-reload"), sudo=True)
    host.close()


@pytest.fixture
def run(host, tmp_path):
    """What a run is to this module."""
    record, folder = ended(tmp_path, "OK", 1)
    run = SimpleNamespace(host=host, alias="gpu-a", folder=folder, answers={}, closing=ExitStack(), notes=[])
    run.record = RunRecord(runbook="90-deploy", parameters={}, host="gpu-a", started_at=record.started_at)
    run.parameters, run.is_headless, run.is_finished = SimpleNamespace(unit=UNIT), True, False
    run.note, run.tell = run.notes.append, lambda *_, **__: None
    return run


def install(host, text):
    apply_plan(host, plan_install(host, unit=UNIT, unit_text=text))


def change(run, text):
    """What the sections do: note, apply, start."""
    plan = plan_install(run.host, unit=UNIT, unit_text=text)
    note_found(run, plan)
    apply_plan(run.host, plan)
    start_unit(run.host, UNIT)


def test_what_was_not_there_is_gone_again(run):
    """A unit that was new is stopped and taken away."""
    change(run, NEW)
    run.closing.close()
    assert run.record.left == f"rolled back on gpu-a: 1 files as before; {UNIT} is stopped, as it was found"
    assert read_unit_text(run.host, UNIT) is None
    assert show_unit(run.host, UNIT).active_state == "inactive"


def test_what_was_running_runs_again(run):
    """A unit that was running before runs again with what it had."""
    install(run.host, OLD)
    start_unit(run.host, UNIT)
    change(run, NEW)
    put_back(run)
    assert run.record.left.endswith(f"1 files as before; {UNIT} was running and is started again with what it had")
    assert read_unit_text(run.host, UNIT) == OLD
    status = show_unit(run.host, UNIT)
    assert (status.active_state, status.need_daemon_reload) == ("active", False)
    assert b"600" in run.host.read_file(f"/proc/{status.main_pid}/cmdline") or run.host.settings.is_rehearsal


def test_a_unit_that_had_made_room_comes_back(run):
    """The unit that was replaced is started again."""
    install(run.host, OLD)
    run.answers["replaced"] = UNIT
    run.parameters.unit = f"{UNIT}-new"
    note_found(run, plan_install(run.host, unit=UNIT, unit_text=OLD))
    put_back(run)
    assert run.record.left.endswith(f"; {UNIT}, which had made room, is started again")
    assert show_unit(run.host, UNIT).active_state == "active"


def test_what_runs_on_is_left_alone(run):
    """Ended before its restart, the process that was found runs on: the same invocation."""
    install(run.host, OLD)
    start_unit(run.host, UNIT)
    before = show_unit(run.host, UNIT).invocation_id
    plan = plan_install(run.host, unit=UNIT, unit_text=NEW)
    note_found(run, plan)
    apply_plan(run.host, plan)
    put_back(run)
    assert run.record.left.endswith(f"1 files as before; {UNIT} runs on, as it was found")
    assert show_unit(run.host, UNIT).invocation_id == before


def test_a_deploy_that_came_to_its_end_stays(run):
    """Nothing is put back after an outcome, once the engine answers, or under a person's hands."""
    change(run, NEW)
    found = run.answers["found"]
    run.is_finished = True
    run.closing.close()
    run.is_finished = False
    run.answers |= {"found": found, "launch": SimpleNamespace(state=LaunchState.READY)}
    put_back(run)
    run.answers, run.is_headless = {}, False
    note_found(run, plan_install(run.host, unit=UNIT, unit_text=OLD))
    put_back(run)
    assert (run.record.left, read_unit_text(run.host, UNIT)) == ("", NEW)


def test_nothing_is_undone_that_the_record_could_not_tell_of(run, monkeypatch):
    """On a full disk the unit stays: the record still says that it is installed, and that is true."""
    change(run, NEW)
    before = run.record.left
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    put_back(run)
    monkeypatch.undo()
    assert run.folder.read_record().left == before
    assert read_unit_text(run.host, UNIT) == NEW
    assert show_unit(run.host, UNIT).active_state == "active"


def test_a_host_that_is_lost_is_said(run, monkeypatch):
    """Where nothing can be put back the record says why, and what is left stays to be said."""
    change(run, NEW)
    lost = SimpleNamespace(settings=run.host.settings)
    lost.read_file = lambda *_, **__: (_ for _ in ()).throw(HostUnreachable("nothing answered", host="gpu-a"))
    monkeypatch.setattr(run, "host", lost)
    put_back(run)
    assert run.record.left == ""
    assert run.notes == ["the roll-back failed: gpu-a: nothing answered"]


def test_sigterm_in_the_middle_of_a_launch_rolls_back(tmp_path):
    """SIGTERM while the engine loads: exit code 3, interrupted, and the record says that the host is as it was found."""

    def stop(event):
        if event["text"].startswith("starting "):
            os.kill(os.getpid(), signal.SIGTERM)

    result = run_headless("30-launch", {"host": "rehearsal:healthy"}, runs_dir=tmp_path / "runs", on_event=stop)
    assert (result.exit_code, result.record.status) == (3, "interrupted")
    assert result.outcome.reason.startswith("interrupted by SIGTERM during launch; rolled back on rehearsal:healthy: ")
    assert result.outcome.reason.endswith(" files as before; vllm-minimax is stopped, as it was found")
