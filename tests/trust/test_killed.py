"""A deploy that is killed at any point leaves a record that opens, says where it ended, and is true of the host."""

import json
import os
import subprocess
from contextlib import contextmanager

import nbformat
import pytest

from opslib.cli.main import call
from opslib.hosts import open_host
from opslib.records.seal import verify_record
from opslib.rehearsal.server import start_rehearsal
from opslib.workflow.install import read_unit_text
from tests.conftest import not_here
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip
from tests.trust.killing import FAULTS, UNIT, Deploy, assert_host_is_as_told, small_disk

slow = pytest.mark.slow
realhost = pytest.mark.realhost
STARTED, ENDED = "section-started", "section-ended"
# host, fault, and the point at which it comes; what the record then says of the host
POINTS = [
    pytest.param("rehearsal", "papermill", "launch", STARTED, {"installed"}),
    pytest.param("rehearsal", "papermill", "verify-download", STARTED, {"nothing"}, marks=slow),
    pytest.param("rehearsal", "kernel", "plan-unit", ENDED, {"nothing", "in part", "installed"}, marks=slow),
    pytest.param("rehearsal", "kernel", "investigate", STARTED, {"installed"}, marks=slow),
    pytest.param("rehearsal", "terminal", "relaunch", STARTED, {"installed", "rolled back"}, marks=slow),
    pytest.param("rehearsal", "full disk", "plan-memory", ENDED, {"nothing"}, marks=slow),
    pytest.param("realhost", "papermill", "install", STARTED, {"in part", "installed"}, marks=[slow, realhost]),
    pytest.param("realhost", "kernel", "launch", STARTED, {"installed"}, marks=[slow, realhost]),
    pytest.param("realhost", "terminal", "install", ENDED, {"installed", "rolled back"}, marks=[slow, realhost]),
    pytest.param("realhost", "full disk", "launch", STARTED, {"installed"}, marks=[slow, realhost]),
]


@contextmanager
def practice(kind):
    """Settings of a fresh host of this kind whose deploy crashes once and is cured."""
    if kind == "realhost":
        with or_skip(scenario_host("sampler-oom")) as settings:
            yield settings
        return
    with start_rehearsal("sampler-oom") as rehearsal:
        yield rehearsal.settings


@contextmanager
def runs_place(tmp_path, fault):
    """Where the records go; for a disk that is to be full, a small one."""
    if fault != "full disk":
        yield tmp_path / "runs"
        return
    try:
        with small_disk(tmp_path / "runs") as place:
            yield place
    except subprocess.CalledProcessError as error:
        not_here(f"no small file system could be mounted: {error.stderr.decode()}")


def write_inventory(path, settings):
    fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    path.write_text("[hosts.practice]\n" + "\n".join(lines) + "\n")


def text_before(settings):
    host = open_host(settings)
    try:
        return read_unit_text(host, UNIT)
    finally:
        host.close()


@pytest.mark.parametrize(("kind", "fault", "section", "event", "statements"), POINTS)
def test_killed_deploy_leaves_a_true_record(kind, fault, section, event, statements, tmp_path):
    """SIGKILL of papermill, of the kernel, of the terminal, and a full disk: the record opens, says where, and is true."""
    with practice(kind) as settings, runs_place(tmp_path, fault) as runs_dir:
        write_inventory(tmp_path / "hosts.toml", settings)
        before = text_before(settings)
        deploy = Deploy(runs_dir, {**os.environ, "OPSLIB_HOSTS": str(tmp_path / "hosts.toml")})
        try:
            deploy.wait_for(section, event)
            FAULTS[fault](deploy)
            deploy.wait_until_gone()
            (runs_dir / "filler").unlink(missing_ok=True)
            assert call(["runs", "--runs-dir", str(runs_dir)]) == 0
            folder = deploy.folder
            record = json.loads((folder / "record.json").read_text())
            assert_opens_and_says_where(folder, record, deploy.events())
            said = assert_host_is_as_told(settings, record, folder, before)
            assert said in statements, record["outcome"]["reason"]
        finally:
            deploy.end()


def assert_opens_and_says_where(folder, record, events):
    """Facts, notebook, page and seal are whole; the reason names the section that was going on, or the last one."""
    reason = record["outcome"]["reason"]
    assert (record["status"], record["exit_code"]) == ("interrupted", 3), reason
    assert reason.startswith(("interrupted at 20", "interrupted by SIGHUP")), reason
    told = [one for one in events if one["kind"] in (STARTED, ENDED)]
    where = f"during {told[-1]['section']}" if told[-1]["kind"] == STARTED else f"after {told[-1]['section']}"
    assert where in reason, reason
    assert nbformat.read(folder / "notebook.ipynb", 4).cells
    assert where in (folder / "record.html").read_text()
    assert verify_record(folder).alterations == ()
