"""The record that is kept as an example can be read, passed on, and is what its README says."""

import json
import re
from pathlib import Path

import pytest

from opslib.domain.record import RunRecord

EXAMPLES = Path(__file__).parents[1] / "runs" / "examples"
RECORDS = sorted(path.parent for path in EXAMPLES.glob("*/record.json"))
LARGEST_BYTES = 1_000_000


def test_there_is_an_example():
    """The README of the examples has a record to speak of."""
    assert (EXAMPLES / "README.md").is_file()
    assert RECORDS


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_example_is_a_good_deploy(folder):
    """It is read by today's code, ended ok, and holds the engine's version and at least four levels."""
    record = RunRecord.model_validate_json((folder / "record.json").read_text())
    sections = {section.name: section.value for section in record.sections}
    assert (record.runbook, record.shown_exit_code, record.status) == ("90-deploy", 0, "finished")
    assert sections["launch"]["engine"]["version"].startswith("0.32")
    assert len(sections["benchmark"]["levels"]) >= 4


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_example_may_be_passed_on(folder):
    """Small, its page fetches nothing, and no file names a place of the machine it was made on."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST_BYTES
    page = (folder / "record.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|<script|url\(\s*["']?https?:""", page)
    told = [path.read_text("utf-8", "replace") for path in files]
    assert not [text for text in told if re.search(r"/root\b|/home/|/tmp/|/work/|opslib-rig-", text)]
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    assert notebook["metadata"]["papermill"]["output_path"] == "notebook.ipynb"
