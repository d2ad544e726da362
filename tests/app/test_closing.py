"""A run that was killed: the next look at the records writes its end, truly and once."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import nbformat
import pytest

from opslib.app.closing import close_killed
from opslib.cli.main import call
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import SectionRecord, new_record
from opslib.domain.states import State
from opslib.records.alive import is_alive
from opslib.records.folder import RunFolder
from opslib.records.seal import verify_record

NOW = datetime.now(UTC).replace(microsecond=0)


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def killed(tmp_path):
    """A deploy that was killed while it launched: its files as they were last saved, an event torn."""
    folder = RunFolder.create(tmp_path, "gpu-a", "vllm-a", "90-deploy", NOW)
    record = new_record(
        "90-deploy", validate_parameters("90-deploy", {"host": "gpu-a", "unit": "vllm-a"}), started_at=NOW
    )
    install = SectionRecord(name="install", state=State.OK, value={"undo": ["sudo rm /u"]}, started_at=NOW)
    facts = {"process_id": dead_process(), "parent_process_id": dead_process()}
    folder.write_record(record.with_section(install).model_copy(update=facts))
    for kind, name in (("section-started", "install"), ("section-ended", "install"), ("section-started", "launch")):
        folder.append_event({"kind": kind, "section": name})
    with (folder.path / "events.jsonl").open("a") as events:
        events.write('{"kind": "li')
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Is it up?")])
    nbformat.write(notebook, folder.notebook_path)
    later = int(time.time()) + 60  # the last sign of life of all
    os.utime(folder.notebook_path, (later, later))
    return folder


def test_next_list_of_records_closes_it(killed, capsys):
    """`opslib runs` finds it, says when and during what it ended and what is left, and makes its page and its seal."""
    assert call(["runs", "--runs-dir", str(killed.path.parent), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["records"]
    assert entry["status"] == "interrupted"
    record = killed.read_record()
    ended_at = datetime.fromtimestamp(killed.notebook_path.stat().st_mtime, UTC)
    assert (record.status, record.ended_at, record.exit_code) == ("interrupted", ended_at, 3)
    reason = record.outcome.reason
    assert reason.startswith(f"interrupted at {ended_at:%Y-%m-%d %H:%M:%S} UTC during launch: its process is gone")
    assert "vllm-a is installed and may be running: sudo systemctl stop vllm-a; undo: sudo rm /u" in reason
    assert "during launch" in (killed.path / "record.html").read_text()
    assert verify_record(killed.path).alterations == ()
    before = (killed.path / "record.json").read_bytes()
    assert close_killed(killed.path) is None
    assert (killed.path / "record.json").read_bytes() == before


def test_killed_before_the_first_save_has_a_page_too(killed):
    """Where there is no notebook yet, the page has the facts alone."""
    killed.notebook_path.unlink()
    assert close_killed(killed.path)
    assert "during launch" in (killed.path / "record.html").read_text()


@pytest.mark.parametrize("who", ["process_id", "parent_process_id"])
def test_run_that_goes_on_is_left_alone(killed, who):
    """While its kernel or the process that runs it is there, nobody else writes its end."""
    killed.write_record(killed.read_record().model_copy(update={who: os.getpid()}))
    assert close_killed(killed.path) is None
    assert killed.read_record().status == "running"


def test_process_number_used_anew_is_another_process():
    """After a reboot a number may be anybody's: a process that began after the run is not the run's."""
    assert is_alive("", os.getpid(), datetime.now(UTC))
    assert not is_alive("", os.getpid(), datetime.now(UTC) - timedelta(days=30))
    assert not is_alive("", dead_process())
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert zombie.stdout.read() == b""
    deadline = time.monotonic() + 10
    while is_alive("", zombie.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive("", zombie.pid)  # nobody has waited for it yet
    zombie.wait()
    assert is_alive("elsewhere.example", dead_process())
