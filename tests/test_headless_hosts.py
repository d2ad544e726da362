"""Headless runs on both kinds of host: a dry run changes nothing, and of two deploys at once one is refused."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from opslib.app.headless import run_headless
from opslib.domain.lock import LockHolder
from opslib.records.lock import hold_controller_lock
from tests.conftest import not_here, opened
from tests.rig.debian import RigUnavailable, debian_host, install_standin
from tests.rig.inventory import write_inventory

KINDS = ["rehearsal", pytest.param("realhost", marks=pytest.mark.realhost)]


@pytest.fixture(scope="module")
def ready_debian():
    """A real Debian with engine and checkpoint, where a deploy would work."""
    try:
        with debian_host("opslib-headless") as debian:
            yield debian.ops_settings.model_copy(update={"vllm": install_standin(debian, "healthy").vllm})
    except RigUnavailable as error:
        not_here(f"no real Debian host: {error}")


@pytest.fixture
def settings(request, tmp_path, monkeypatch):
    """The host as root finds it; `gpu-a` in hosts.toml, as an operator reaches it."""
    fixture = {"rehearsal": "rehearsal", "realhost": "ready_debian"}[request.param]
    found = request.getfixturevalue(fixture)
    found = found.settings if request.param == "rehearsal" else found
    monkeypatch.setenv("OPSLIB_HOSTS", str(write_inventory(tmp_path / "hosts.toml", "gpu-a", found)))
    monkeypatch.setenv("OPSLIB_LOCKS", str(tmp_path / "locks"))
    return found


def listing(settings, root):
    """Every file of /etc and /var/lib with its size and inode, and the engine units."""
    root_login = settings.model_copy(update={} if settings.is_rehearsal else {"user": "root"})
    find = ["find", f"{root}/etc", f"{root}/var/lib", "-printf", "%p %s %m %u %i\\n"]
    with opened(root_login) as host:
        found = host.run(find)
        assert found.text.count("\n") > 5, found.error_text
        return found.text, host.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "vllm*"]).text


@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_a_dry_run_reads_all_and_changes_nothing(settings, tmp_path):
    """--dry-run asks everything up to consent, prints the plan, and leaves no file and no unit otherwise than before."""
    root = settings.unit_dir.removesuffix("/etc/systemd/system")
    before = listing(settings, root)
    events = []
    given = {"host": "gpu-a", "max_num_seqs": 256, "dry_run": True}
    result = run_headless("90-deploy", given, runs_dir=tmp_path / "runs", on_event=events.append)
    assert listing(settings, root) == before
    assert " steps would be taken, and a start" in result.outcome.reason
    assert result.exit_code in (0, 1), result.outcome
    asked = [section.name for section in result.record.sections]
    assert {"identify", "verify-download", "plan-memory", "preflight", "plan-unit", "confirm"} <= set(asked)
    assert "install" not in asked
    plan = next(event for event in events if event["kind"] == "diff")
    assert any(line.startswith("+ExecStart=") for line in plan["lines"])
    assert result.record.is_dry_run


def start(tmp_path, name):
    """One deploy of the command line, from a directory of its own."""
    words = ["run", "30-launch", "-p", "host=gpu-a", "-p", "consent=given", "-p", "max_num_seqs=256"]
    command = [sys.executable, "-m", "opslib.cli", *words, "--json", "--runs-dir", str(tmp_path / name)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)


@pytest.mark.realhost
@pytest.mark.parametrize("settings", ["realhost"], indirect=True)
def test_a_unit_that_is_locked_here_is_left_alone(settings, tmp_path):
    """A deploy of a unit that another process of this controller holds is refused with its name; nothing is installed."""
    other = LockHolder(
        user="ana",
        controller=os.uname().nodename,
        process_id=os.getpid(),
        runbook="90-deploy",
        record="hers",
        since=datetime(2026, 11, 29, tzinfo=UTC),
    )
    with hold_controller_lock(settings, "vllm-minimax", other):
        result = run_headless("30-launch", {"host": "gpu-a", "consent": "given"}, runs_dir=tmp_path / "runs")
    assert result.exit_code == 4
    assert "vllm-minimax is locked: ana on " in result.outcome.reason
    assert "record hers is at work on it" in result.outcome.reason
    assert "install" not in [section.name for section in result.record.sections]


@pytest.mark.slow
@pytest.mark.realhost
@pytest.mark.parametrize("settings", ["realhost"], indirect=True)
def test_of_two_deploys_at_once_one_is_refused(settings, tmp_path):
    """Two checkouts, one unit: one deploys, the other is refused (exit code 4) with the holder's name; then a dead holder."""
    both = [start(tmp_path, "one"), start(tmp_path, "two")]
    told = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    codes = sorted(document["exit_code"] for document in told)
    refused = next(document for document in told if document["exit_code"] == 4)
    deployed = next(document for document in told if document is not refused)
    assert codes[1] == 4, told
    assert codes[0] in (0, 1), told
    reason = refused["outcome"]["reason"]
    assert "vllm-minimax is locked: " in reason
    assert deployed["record"].rsplit("/", 1)[-1] in reason
    assert f" on {os.uname().nodename} (process " in reason
    assert not [section for section in refused["sections"] if section["name"] == "install"]

    dying = start(tmp_path, "three")
    lock = tmp_path / "locks"
    deadline = time.monotonic() + 120
    while not list(lock.glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    holder = json.loads(next(lock.glob("*.json")).read_text())
    os.kill(holder["process_id"], 9)
    dying.communicate(timeout=120)
    last = json.loads(start(tmp_path, "four").communicate(timeout=240)[0])
    assert last["exit_code"] in (0, 1), last
    note = next(note for note in last["notes"] if "on this machine was left behind by" in note)
    assert f"(process {holder['process_id']})" in note
    assert note.endswith("they are gone: taken over")
