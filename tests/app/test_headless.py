"""Headless runs: refused before anything, or executed into a record that is kept whatever happens."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest

from opslib.app import ending, headless
from opslib.app.kernel import KernelControl
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.states import State
from opslib.errors import BadParameter, UnknownName
from opslib.records.folder import RunFolder

PARAMETERS = 'host = "rehearsal"\nunit = "vllm-minimax"\ninvocation = "-1"'
RECORD = """
import os
from datetime import UTC, datetime
from pathlib import Path
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
folder = RunFolder.open(Path(os.environ["OPSLIB_RUN_DIR"]))
"""
FINISH = """
now = datetime.now(UTC)
folder.append_event({"kind": "line", "text": f"asked {host}, {invocation}", "section": "who"})
folder.write_record(folder.read_record().finished(Outcome(state=State.%s, reason="it is so"), now))
"""


def write_notebook(directory: Path, *cells: str) -> Path:
    directory.mkdir(exist_ok=True)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# Why did it crash?\nChanges nothing.")]
    notebook.cells.append(nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    notebook.cells += [nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
    path = directory / "40-investigate-crash.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the given cells as the runbook 40-investigate-crash, on a host that is never asked."""
    monkeypatch.setenv("OPSLIB_NOTEBOOKS", str(tmp_path / "notebooks"))
    monkeypatch.setattr(headless, "check_alias", lambda alias: None)

    def run(*cells, given=None, on_event=lambda event: None):
        write_notebook(tmp_path / "notebooks", *cells)
        return headless.run_headless("40", given or {}, runs_dir=tmp_path / "runs", on_event=on_event)

    return run


@pytest.mark.parametrize(("state", "exit_code"), [("OK", 0), ("WARNING", 1), ("CRITICAL", 2), ("UNKNOWN", 3)])
def test_exit_code_is_the_outcomes(run, state, exit_code):
    """The exit code of a run is that of the outcome in its record."""
    result = run(RECORD, FINISH % state)
    assert (result.exit_code, result.outcome.reason) == (exit_code, "it is so")


def test_parameters_reach_the_notebook_and_events_the_caller(run):
    """What is given is injected into the notebook, and each event is handed on while it runs."""
    events = []
    result = run(RECORD, FINISH % "OK", given={"invocation": "-2"}, on_event=events.append)
    assert [event["text"] for event in events] == ["asked rehearsal, -2"]
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "events.jsonl",
        "notebook.ipynb",
        "record.html",
        "record.json",
        "seal.json",
    ]
    assert "it is so" in (result.folder / "record.html").read_text()


def test_failed_notebook_keeps_its_record(run):
    """A cell that raises ends as unknown, exit code 3, with its error in one line, and the record is whole."""
    result = run(RECORD, 'raise ValueError("no\\nsuch thing")')
    assert result.exit_code == 3
    assert result.outcome.reason == "the runbook ended after the beginning: ValueError: no"
    assert "no such thing" not in result.outcome.reason
    assert nbformat.read(result.folder / "notebook.ipynb", 4).cells
    assert (result.folder / "record.html").is_file()


def test_refusal_inside_the_notebook_is_a_refusal(run):
    """An error of opslib that ends the notebook gives its own exit code."""
    result = run(RECORD, 'from opslib.errors import HostKeyRefused\nraise HostKeyRefused("key changed", host="a")')
    assert (result.exit_code, result.record.exit_code) == (4, 4)


def test_notebook_without_outcome_is_unknown(run):
    """A notebook that never says how it ended could not find out."""
    result = run("1 + 1")
    assert (result.exit_code, result.outcome.state) == (3, State.UNKNOWN)


def test_dead_kernel_is_an_interruption(run):
    """A kernel that dies leaves a record that says so."""
    result = run(RECORD, "os._exit(9)")
    assert (result.exit_code, result.record.status) == (3, "interrupted")
    assert "kernel died" in result.outcome.reason


def test_secret_is_in_no_file(run, tmp_path, monkeypatch):
    """A secret of the environment that is printed, shown, raised and told is in no byte of the record."""
    canary = "kanarienvogel-4711-geheim"
    monkeypatch.setenv("CANARY_TOKEN", canary)
    result = run(
        RECORD,
        'secret = os.environ["CANARY_TOKEN"]; print(secret)',
        'import base64; print(base64.b64encode(f"user:{secret}".encode())); secret',
        'folder.append_event({"kind": "line", "text": secret}); folder.add_evidence("a.log", secret.encode())',
        'raise RuntimeError(f"with {secret}")',
    )
    for path in filter(Path.is_file, result.folder.rglob("*")):
        assert canary not in path.read_text(), path.name
        assert "a2FuYXJpZW52b2dlbC00NzEx"[4:20] not in path.read_text(), path.name
    assert "[redacted:known]" in result.outcome.reason


def test_runs_on_this_interpreter_from_any_directory(run, tmp_path, monkeypatch):
    """The kernel is the running interpreter, whatever kernelspecs are installed and wherever the shell is."""
    specs = tmp_path / "jupyter/kernels/python3"
    specs.mkdir(parents=True)
    (specs / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "other", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.chdir(tmp_path)
    check = f'import sys; assert sys.executable == {sys.executable!r}; assert os.getcwd() == "{tmp_path}"'
    assert run(RECORD, check, FINISH % "OK").exit_code == 0


def test_kernel_leaves_by_itself(run, tmp_path):
    """What a kernel closes at its exit is closed, also while it has children, and without waiting for a kill."""
    mark = tmp_path / "closed"
    child = "import atexit, subprocess\nchild = subprocess.Popen(['sleep', '5'])"
    closing = f"atexit.register(lambda: (child.terminate(), Path({str(mark)!r}).touch()))"
    assert run(RECORD, child, closing, FINISH % "OK").exit_code == 0
    assert mark.exists()


def test_bad_parameter_leaves_no_trace(run, tmp_path):
    """A bad parameter is refused before the record folder exists."""
    with pytest.raises(BadParameter, match="did you mean invocation"):
        run(RECORD, given={"invocaton": "-1"})
    assert not (tmp_path / "runs").exists()


def test_unknown_reference_leaves_no_trace(tmp_path, monkeypatch):
    """A reference to a secret that isn't there is refused before anything."""
    write_notebook(tmp_path / "notebooks").rename(tmp_path / "notebooks/30-launch.ipynb")
    monkeypatch.setenv("OPSLIB_NOTEBOOKS", str(tmp_path / "notebooks"))
    with pytest.raises(BadParameter, match="env:NO_SUCH_TOKEN: no such variable"):
        headless.run_headless(
            "30-launch", {"environment": {"HF_TOKEN": "env:NO_SUCH_TOKEN"}}, runs_dir=tmp_path / "runs"
        )
    assert not (tmp_path / "runs").exists()


def test_unknown_runbook_offers_the_nearest(run, tmp_path):
    """An unknown runbook is refused with the nearest name."""
    write_notebook(tmp_path / "notebooks")
    with pytest.raises(UnknownName, match="did you mean 40-investigate-crash"):
        headless.run_headless("investigate-crahs", {}, runs_dir=tmp_path / "runs")


SCRIPT = """
import sys
from pathlib import Path
from opslib.app import ending, headless
headless.check_alias = lambda alias: None
result = headless.run_headless("40", {}, runs_dir=Path(sys.argv[1]))
print(result.exit_code, result.folder, flush=True)
"""


@pytest.mark.parametrize(
    ("number", "waiting"),
    [
        (signal.SIGINT, "time.sleep(60)"),
        (signal.SIGTERM, "await asyncio.sleep(60)"),
        (signal.SIGHUP, "await asyncio.to_thread(time.sleep, 1); await asyncio.sleep(60)"),
    ],
)
def test_signal_ends_the_run_in_order(tmp_path, number, waiting):
    """A signal interrupts the cell (one that awaits, too), lets its clean-up run, ends the kernel and marks the record."""
    mark = tmp_path / "cleaned-up"
    write_notebook(
        tmp_path / "notebooks",
        RECORD,
        f"""
import asyncio, time
folder.write_json("kernel.json", os.getpid())
try:
    {waiting}
finally:
    Path({str(mark)!r}).touch()
""",
        FINISH % "OK",
    )
    environment = {**os.environ, "OPSLIB_NOTEBOOKS": str(tmp_path / "notebooks")}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not (found := list(tmp_path.glob("runs/*/kernel.json"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        kernel = int(found[0].read_text())
        process.send_signal(number)
        code, folder = process.communicate(timeout=30)[0].split()
    record = RunRecord.model_validate_json((Path(folder) / "record.json").read_text())
    assert (code, record.status, record.outcome.state) == ("3", "interrupted", State.UNKNOWN)
    assert signal.Signals(number).name in record.outcome.reason
    assert mark.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)


def test_runs_outside_the_main_thread(run):
    """A run started from another thread works too; it just takes no signals."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run(RECORD, FINISH % "OK")))
    thread.start()
    thread.join(60)
    assert results[0].exit_code == 0


def test_record_names_no_place_of_this_machine(run, tmp_path):
    """Where the runbook was read and the record was written is in no file of it: it may be passed on."""
    result = run(RECORD + FINISH % "OK" + "folder = None")
    files = [path for path in result.folder.rglob("*") if path.is_file()]
    assert {"notebook.ipynb", "record.html", "seal.json"} <= {path.name for path in files}
    assert not [path.name for path in files if str(tmp_path).encode() in path.read_bytes()]


def test_an_interrupted_run_says_where_and_what_it_leaves(tmp_path):
    """The section that was going on is named, and for an installed unit how it is stopped and undone."""
    now = datetime.now(UTC)
    folder = RunFolder.create(tmp_path, "gpu-a", "vllm-a", "90-deploy", now)
    for kind, name in (("section-started", "install"), ("section-ended", "install"), ("section-started", "launch")):
        folder.append_event({"kind": kind, "section": name})
    install = SectionRecord(name="install", state=State.OK, value={"undo": ["sudo rm /u", "sudo x"]}, started_at=now)
    folder.write_record(RunRecord(runbook="90-deploy", parameters={}, host="gpu-a", unit="vllm-a", started_at=now))
    record = folder.read_record().with_section(install)
    folder.write_record(record)
    control = KernelControl()
    control.stop("SIGINT")
    reason = ending.closed_record(folder, None, control).outcome.reason
    assert reason.startswith("interrupted by SIGINT during launch; vllm-a is installed and may be running: ")
    assert reason.endswith("sudo systemctl stop vllm-a; undo: sudo rm /u && sudo x")


@pytest.mark.parametrize(
    ("host", "left"),
    [
        ("gpu-a", "nothing was changed on gpu-a"),
        ("rehearsal:healthy", "rehearsal:healthy is gone, and all that was changed on it: it was a practice host"),
    ],
)
def test_a_practice_service_is_not_left_unsaid(host, left):
    """What prepares a service to be measured changes a practice host, and no other; of that host nothing is left."""
    now = datetime.now(UTC)
    record = RunRecord(runbook="50-benchmark", parameters={}, host=host, unit="vllm-a", started_at=now)
    assert ending.left_on_host(record, "prepare-service") == left
