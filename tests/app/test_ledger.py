"""The ledger is read from records: prediction and journal side by side."""

from datetime import UTC, datetime

import pytest

from opslib.app.ledger import read_ledger
from opslib.domain.memory import plan_memory
from opslib.domain.memory_ledger import calibrate
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import SectionRecord, new_record
from opslib.records.folder import RunFolder
from tests.memory_cases import story

GIB = 2**30
ENGINE = {
    "version": "0.15.1",
    "arguments": {"model": "/m", "gpu_memory_utilization": 0.95},
    "weights_bytes": int(57.5 * GIB),
    "available_kv_cache_bytes": int(25.32 * GIB),
    "kv_cache_tokens": 428208,
    "cuda_graphs_bytes": 2 * GIB,
}
RELAUNCHED = {**ENGINE, "arguments": {"max_num_seqs": 256}, "available_kv_cache_bytes": int(28.22 * GIB)}


def section(name, value):
    return SectionRecord(name=name, state="ok", value=value, started_at=datetime.now(UTC))


@pytest.fixture
def runs(tmp_path):
    """Two deploys of the story: each crashed with 1024 sequences, and was relaunched with 256."""
    plan = plan_memory(**story()).model_dump(mode="json")
    for _ in range(2):
        folder = RunFolder.create(tmp_path, "gpu7", "vllm", "90-deploy", datetime.now(UTC))
        parameters = validate_parameters("90-deploy", {"host": "gpu7"})
        record = new_record("90-deploy", parameters, started_at=datetime.now(UTC)).model_copy(update={"host": "gpu7"})
        record = record.with_section(section("plan-memory", plan))
        record = record.with_section(section("launch", {"engine": ENGINE, "elapsed_s": 40.0}))
        record = record.with_section(section("relaunch", {"engine": RELAUNCHED, "elapsed_s": 75.0}))
        folder.write_record(record)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text("{")
    return tmp_path


def test_every_launch_is_an_entry(runs):
    """A broken record is passed over; what a relaunch changed isn't compared with the old plan."""
    entries = read_ledger(runs, "gpu7")
    assert [entry.max_num_seqs for entry in entries] == [1024, 256, 1024, 256]
    assert entries[0].actual["weights"] == 57.5
    assert entries[0].predicted["kv_cache"] == pytest.approx(28.3, abs=0.3)
    assert entries[1].predicted.keys() == {"weights", "cuda_graphs"}
    assert read_ledger(runs, "gpu8") == ()


def test_the_next_plan_learns_from_them(runs):
    """Weights from all four launches, the overhead from those with as many sequences."""
    entries = read_ledger(runs, "gpu7")
    learnt = calibrate(entries, model=entries[0].model, max_num_seqs=1024)
    assert learnt.n_launches == 4
    plan = plan_memory(**story(), calibration=learnt)
    assert plan.term("kv_cache").expected_bytes / GIB == pytest.approx(25.32, abs=0.05)
    assert plan.verdict == "gpu-memory/sampler-warmup"


def test_no_records_are_no_launches(tmp_path):
    """A new checkout has none."""
    assert read_ledger(tmp_path / "none", "gpu7") == ()
