"""A small runbook for the command line: it tells a story and ends as its `max_restarts` parameter says."""

import nbformat
import pytest

BIND = """
import os
from datetime import UTC, datetime
from pathlib import Path
from opslib.domain.record import SectionRecord
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
folder = RunFolder.open(Path(os.environ["OPSLIB_RUN_DIR"]))
"""
TELL = """
folder.append_event({"kind": "section-started", "section": "launch", "text": "launch"})
folder.append_event({"kind": "diff", "section": "launch", "text": "the unit changes", "lines": ["- a", "+ --max-num-seqs 256"]})
folder.append_event({"kind": "evidence", "section": "launch", "text": "deciding line", "lines": ["CUDA out of memory"]})
folder.append_event({"kind": "table", "section": "bench", "text": "levels", "columns": ["concurrency", "ttft_ms"], "rows": [[1, 40.0], [64, 1402.5]]})
folder.append_event({"kind": "something-new", "section": "launch", "text": "an unknown kind"})
folder.append_event({"kind": "section-ended", "section": "launch", "state": "ok", "text": "ready after 75 s"})
print("this is the kernel's own output")
"""
FINISH = """
now = datetime.now(UTC)
state = list(State)[max_restarts]
record = folder.read_record().with_section(SectionRecord(name="launch", state=state, summary="so", started_at=now))
folder.write_record(record.finished(Outcome(state=state, reason=f"{host} is {state.value}"), now))
folder.append_event({"kind": "outcome", "state": state.value, "text": f"{host} is {state.value}"})
"""


@pytest.fixture
def runbooks(tmp_path, monkeypatch):
    """Directory of the runbook 90-deploy, and of an inventory with one host that is never asked."""
    notebook = nbformat.v4.new_notebook()
    parameters = nbformat.v4.new_code_cell("max_restarts = 1", metadata={"tags": ["parameters"]})
    notebook.cells = [nbformat.v4.new_markdown_cell("# Is it deployed?"), parameters]
    notebook.cells += [nbformat.v4.new_code_cell(f'host = "{{}}"\n{BIND}'.format("gpu-07"))]
    notebook.cells += [nbformat.v4.new_code_cell(cell.strip()) for cell in (TELL, FINISH)]
    directory = tmp_path / "notebooks"
    directory.mkdir()
    nbformat.write(notebook, directory / "90-deploy.ipynb")
    (tmp_path / "hosts.toml").write_text('[hosts.gpu-07]\naddress = "192.0.2.7"\nlabels = ["h100"]\n')
    monkeypatch.setenv("OPSLIB_NOTEBOOKS", str(directory))
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    return tmp_path
