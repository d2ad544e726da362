"""A task that an engine may start again: what it did before is found, waited for, or asked of the host; nothing twice."""

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opslib.app import host_run
from opslib.app.host_run import HostEnd, check_hosts, earlier_runs, read_end, run_command, run_once, started_by
from opslib.domain.parameters import validate_parameters
from opslib.domain.pseudonyms import pseudonyms_for
from opslib.domain.record import new_record
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter
from opslib.records.folder import RunFolder
from opslib.records.operator import STARTED_BY, operator

RUNBOOK, HOST, TASK = "10-verify-download", "gpu-a", "Prefect flow run 7"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SAYS_OK = """
import json, os, sys
print("record  /runs/x", file=sys.stderr)
print(json.dumps({"outcome": {"state": "ok", "reason": os.environ["OPSLIB_STARTED_BY"]}, "record": "/runs/x"}))
"""
WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), open({place!r}, "w").close(), sys.exit(3)))
print("begun", os.getsid(0), file=sys.stderr, flush=True)
time.sleep(60)
"""


def begun(runs_dir: Path, *, user="ana", host=HOST, process_id=None, at=NOW, **more):
    """A record of a run; running unless it says more."""
    record = new_record(RUNBOOK, validate_parameters(RUNBOOK, {"host": host}), started_at=at)
    folder = RunFolder.create(runs_dir, host, "vllm-minimax", RUNBOOK, at)
    facts = {"host": host, "user": user, "process_id": process_id or os.getpid(), **more}
    folder.write_record(record.model_copy(update=facts))
    return folder


def finished(runs_dir: Path, state=State.CRITICAL, **more):
    return begun(runs_dir, status="finished", outcome=Outcome(state=state, reason="so it is"), **more)


def once(runs_dir: Path, **more):
    return run_once(RUNBOOK, HOST, {}, runs_dir=runs_dir, task=TASK, tell=more.pop("tell", print), **more)


@pytest.fixture
def program(monkeypatch):
    """What is run in place of `opslib run`; its runs are counted."""
    runs = []

    def choose(text):
        monkeypatch.setattr(host_run, "run_command", lambda *_: runs.append(1) or [sys.executable, "-c", text])
        return runs

    return choose


@pytest.mark.parametrize("state", [State.OK, State.WARNING, State.CRITICAL])
def test_an_end_that_was_recorded_is_the_answer(tmp_path, program, state):
    """What this task's own run came to counts, and nothing is run again."""
    runs = program(SAYS_OK)
    folder = finished(tmp_path, state, user=f"ana{started_by(TASK)}")
    end = once(tmp_path)
    assert (end.state, end.exit_code, end.is_found, end.reason) == (state, state.exit_code, True, "so it is")
    assert end.record == str(folder.path)
    assert runs == []


@pytest.mark.parametrize(
    "before",
    [
        {"user": "ana"},  # somebody by hand
        {"user": f"ana{started_by('Prefect flow run 77')}"},
        {"user": f"ana{started_by(TASK)}", "host": "gpu-b"},
        {"user": f"ana{started_by(TASK)}", "state": State.UNKNOWN},  # it could not be found out: asked again
    ],
    ids=["by-hand", "another-task", "another-host", "open"],
)
def test_what_is_no_answer_is_run(tmp_path, program, before):
    """The run of anybody else, on another host, or without an answer stands for nothing; the new run names the task."""
    runs = program(SAYS_OK)
    finished(tmp_path, **before)
    end = once(tmp_path)
    assert (end.state, end.is_found, end.reason, end.record) == (State.OK, False, TASK, "/runs/x")
    assert runs == [1]


def test_an_end_that_was_told_already_does_not_count(tmp_path, program):
    """Of runs before `since` the engine has told the end: who asks it to try again wants a new one."""
    runs = program(SAYS_OK)
    finished(tmp_path, user=f"ana{started_by(TASK)}")
    assert once(tmp_path, since=NOW + timedelta(seconds=1)).is_found is False
    assert once(tmp_path, since=NOW - timedelta(seconds=1)).is_found is True
    assert runs == [1]


def test_a_run_that_outlived_its_worker_is_waited_for(tmp_path, program, monkeypatch):
    """While its process is there it isn't run a second time; its own end is the answer."""
    runs = program(SAYS_OK)
    monkeypatch.setattr(host_run, "_ASK_EVERY_S", 0.05)
    folder = begun(tmp_path, user=f"ana{started_by(TASK)}", at=datetime.now(UTC))
    ended = folder.read_record().finished(Outcome(state=State.OK, reason="ready after all"), datetime.now(UTC))
    threading.Timer(0.3, lambda: folder.write_record(ended)).start()
    began = time.monotonic()
    assert once(tmp_path).reason == "ready after all"
    assert time.monotonic() - began >= 0.25
    assert runs == []


def test_a_run_that_was_killed_is_run_again(tmp_path, program):
    """Nobody knows what it left: the runbook asks the host, and only one run is begun."""
    runs = program(SAYS_OK)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    begun(tmp_path, user=f"ana{started_by(TASK)}", process_id=int(gone.stdout))
    told = []
    assert once(tmp_path, tell=told.append).state is State.OK
    assert told[0].endswith(": interrupted")
    assert runs == [1]


def test_another_machines_run_is_left_to_the_hosts_lock(tmp_path, program):
    """Whether it still runs can't be seen from here: the runbook is begun, and the lock on the host refuses it."""
    runs = program(SAYS_OK)
    begun(tmp_path, user=f"ana{started_by(TASK)}", controller="other")
    assert once(tmp_path).is_found is False
    assert runs == [1]


def test_an_interrupted_task_ends_its_run_in_order(tmp_path, program):
    """The run gets one SIGTERM, and is waited for while it puts back what it had begun; signals to its group are not for it."""
    place = tmp_path / "put-back"
    program(WAITS.format(place=str(place)))

    def tell(line):
        kind, _, session = line.partition(" ")
        assert kind == "begun"
        assert int(session) != os.getsid(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once(tmp_path, tell=tell)
    assert place.exists()


ENDS = [
    ({"outcome": {"state": "critical", "reason": "no"}, "record": "/r"}, 2, "critical", False),
    ({"outcome": {"state": "warning", "reason": "hm"}, "record": "/r"}, 1, "warning", False),
    ({"outcome": {"state": "unknown", "reason": "lost"}, "record": "/r"}, 3, "unknown", True),
    ({"outcome": {"state": "unknown", "reason": "its lock is held"}, "record": "/r"}, 4, "refused", True),
    ({"error": {"kind": "BadParameter", "problems": ["prot: unknown"]}}, 4, "refused", False),
    (None, -9, "unknown", True),
]


@pytest.mark.parametrize(("document", "code", "word", "is_open"), ENDS)
def test_exit_codes_are_read(document, code, word, is_open):
    """A refusal before anything was begun stays one; what a host refused, and what is unknown, may be asked again."""
    end = read_end(HOST, json.dumps(document).encode() if document else b"", code)
    assert (end.word, end.is_open) == (word, is_open)


def test_the_host_is_the_tasks_own():
    """A host among the parameters would be another one than the task's limit is about; texts stay as they are."""
    with pytest.raises(BadParameter, match="chosen by the task"):
        run_command(RUNBOOK, HOST, {"host": "gpu-b"}, Path("runs"))
    words = run_command("90-deploy", HOST, {"max_num_seqs": None, "gpus": [0, 1], "engine_version": "0.20"}, Path("r"))
    assert {"max_num_seqs=null", "gpus=[0, 1]", "engine_version=0.20", "host=gpu-a"} < set(words)
    assert "hosts=[gpu-a]" in run_command("00-survey-hosts", HOST, {}, Path("r"))


def test_a_change_needs_consent_before_it_is_queued(tmp_path, monkeypatch):
    """On a host that isn't for practice somebody has to have agreed; a look, a dry run and practice hosts need nobody."""
    path = tmp_path / "hosts.toml"
    path.write_text('[hosts.gpu-a]\naddress = "a"\n[hosts.p-1]\naddress = "p"\nis_rehearsal = true\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(path))
    with pytest.raises(BadParameter, match="consent"):
        check_hosts("90-deploy", ["p-1", "gpu-a"], {})
    check_hosts("90-deploy", ["gpu-a"], {"consent": "given"})
    check_hosts("90-deploy", ["gpu-a"], {"dry_run": True})
    check_hosts("90-deploy", ["p-1", "rehearsal"], {})
    check_hosts("10-verify-download", ["gpu-a"], {})
    with pytest.raises(BadParameter, match="did you mean port"):
        check_hosts("90-deploy", ["p-1"], {"prot": 1})


def test_earlier_runs_are_newest_first(tmp_path):
    """Of several runs of a task the last one is asked first."""
    for minute in (1, 2, 0):
        finished(tmp_path, user=f"a{started_by(TASK)}", at=NOW + timedelta(minutes=minute))
    names = [entry.name for entry in earlier_runs(tmp_path, RUNBOOK, HOST, TASK)]
    assert names == sorted(names, reverse=True)
    assert len(names) == 3


def test_a_record_says_which_task_began_it(monkeypatch):
    """The login stays the first word; a task's name is one line, and has no name where nobody set it."""
    monkeypatch.setattr("getpass.getuser", lambda: "ana")
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv(STARTED_BY, "Airflow\n task 7")
    assert operator() == f"ana{started_by('Airflow task 7')}"
    monkeypatch.delenv(STARTED_BY)
    assert operator() == "ana"
    assert "ana" in pseudonyms_for({"user": f"ana{started_by(TASK)}"}, [])


def test_a_refusals_word_is_its_own():
    """The state of a refusal is unknown; its word says what it was."""
    assert HostEnd(host=HOST, state=State.UNKNOWN, reason="", exit_code=3).word == "unknown"
