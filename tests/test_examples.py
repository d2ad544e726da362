"""The records that are kept as examples can be read, passed on, and are what their README says."""

import json
import re
from pathlib import Path

import pytest

from opslib.app.records import read_runs
from opslib.domain.record import RunRecord
from opslib.domain.run_facts import cause_of, cured_by
from opslib.domain.run_incident import incident
from opslib.domain.run_timeline import timeline

EXAMPLES = Path(__file__).parents[1] / "runs" / "examples"
RECORDS = sorted(path.parent for path in EXAMPLES.glob("*/record.json"))
# a part of the record's name -> exit code, engine, cause and cure
EXPECTED = {
    "rehearsal-healthy": (0, "0.15", "", ""),
    "rehearsal-sampler-oom": (0, "0.15", "gpu-memory/sampler-warmup", "--max-num-seqs 256"),
    "debian-vllm-tiny": (0, "0.32", "", ""),
}
LARGEST_BYTES = 2_000_000


def read(folder: Path) -> RunRecord:
    return RunRecord.model_validate_json((folder / "record.json").read_text())


def test_the_readme_names_each():
    """There is one record of each kind that the README speaks of, and no other."""
    told = (EXAMPLES / "README.md").read_text()
    assert all(name in told for name in EXPECTED)
    assert [sum(name in folder.name for folder in RECORDS) for name in EXPECTED] == [1] * len(EXPECTED)
    assert len(RECORDS) == len(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_is_a_deploy_that_ended_well(name):
    """It is read by today's code, serves by its cure or without one, and holds engine and at least four levels."""
    record = read(next(folder for folder in RECORDS if name in folder.name))
    exit_code, engine, cause, cure = EXPECTED[name]
    sections = {section.name: section.value for section in record.sections}
    start = sections["relaunch"] if cure else sections["launch"]
    assert (record.runbook, record.shown_exit_code, record.status) == ("90-deploy", exit_code, "finished")
    assert (cause_of(record), cured_by(record)) == (cause, cure)
    assert start["engine"]["version"].startswith(engine)
    assert len(sections["benchmark"]["levels"]) >= 4


def test_the_incident_tells_its_story():
    """Its time line leads from the crash through the deciding line to the answer, and nothing of it is unknown."""
    runs = read_runs(EXAMPLES, ticket="INC-4711")
    order = ["starting vllm-minimax", "torch.OutOfMemoryError", "Main process exited", "remedy:", "ready:"]
    rows = [row.text for row in timeline(runs).rows]
    places = [next(at for at, text in enumerate(rows) if words in text) for words in order]
    assert places == sorted(places)
    assert runs[0].record.clock is not None
    told = incident("INC-4711", runs)
    (impact,) = told.impacts
    assert impact.lasted is not None
    assert told.detection_gap_s is not None
    assert told.causes[0].text.startswith("gpu-memory/sampler-warmup (high confidence)")
    assert told.cures[0].text == "--max-num-seqs 256 cured gpu-memory/sampler-warmup"


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_example_may_be_passed_on(folder):
    """Small, its page fetches nothing, and no file names a place of the machine it was made on."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < LARGEST_BYTES
    page = (folder / "record.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|<script|url\(\s*["']?https?:""", page)
    told = [path.read_text("utf-8", "replace") for path in files]
    assert not [text for text in told if re.search(r"/root/\.(?!cache)|/home/|/tmp/|/work/|opslib-rig-", text)]
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    assert notebook["metadata"]["papermill"]["output_path"] == "notebook.ipynb"
