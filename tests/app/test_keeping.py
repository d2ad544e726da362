"""A notebook saved in JupyterLab is kept in the record that it names, redacted; others are left alone."""

import json
from datetime import UTC, datetime

import nbformat
import pytest

from opslib.app.keeping import METADATA_KEY, keep_saved
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.records.folder import RunFolder

SECRET = "kept-nowhere-4711"


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "rehearsal", "vllm", "30-launch", datetime.now(UTC))
    (tmp_path / "secret").write_text(SECRET)
    given = {"environment": {"HF_TOKEN": f"file:{tmp_path / 'secret'}"}}
    folder.write_record(new_record("30-launch", validate_parameters("30-launch", given), started_at=datetime.now(UTC)))
    return folder


def saved(tmp_path, name, text, html=""):
    """A notebook in notebooks/ whose output names the record `name`."""
    output = nbformat.v4.new_output(
        "display_data", {"text/plain": text, "text/html": html}, metadata={METADATA_KEY: name} if name else {}
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("begin", outputs=[output])])
    path = tmp_path / "notebooks" / "30-launch.ipynb"
    path.parent.mkdir()
    nbformat.write(notebook, path)
    return path


def test_saved_notebook_is_kept_redacted_with_links_that_fit(folder, tmp_path):
    """The copy lies in the record, knows no secret of the run, and links to what lies beside it."""
    html = f'<a href="../runs/{folder.path.name}/next-40-investigate-crash.ipynb">'
    path = saved(tmp_path, folder.path.name, f"token {SECRET}", html)
    assert keep_saved(str(path), tmp_path / "runs") == folder.notebook_path
    kept = json.loads(folder.notebook_path.read_text())["cells"][0]["outputs"][0]["data"]
    assert SECRET not in str(kept)
    assert '<a href="next-40-investigate-crash.ipynb">' in str(kept["text/html"])
    assert SECRET in path.read_text()  # the person's own file is left as it is


@pytest.mark.parametrize("name", ["", "no-such-record", "../notebooks"])
def test_notebook_without_a_record_is_left_alone(folder, tmp_path, name):
    """A notebook that names no record, or none that is there, changes nothing; a name never leads out of runs/."""
    path = saved(tmp_path, name, "text")
    before = sorted(tmp_path.rglob("*"))
    assert keep_saved(str(path), tmp_path / "runs") is None
    assert sorted(tmp_path.rglob("*")) == before
