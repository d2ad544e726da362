"""The canary on the practice host: the same answers every time, and others where the model is not what it should be."""

import json

import pytest

from opslib.app.headless import run_headless
from opslib.domain.benchmark_compare import GATING
from opslib.domain.canary import PROMPTS
from opslib.errors import UnexpectedAnswer
from opslib.workflow.canary import take_fingerprint
from tests.fakes import FakeHost

QUICK = {"concurrency_levels": [1], "output_tokens": 8}


@pytest.fixture(scope="module")
def sections_of(tmp_path_factory):
    """Runs 50-benchmark on a scenario, all into one runs folder; the outcome and the canary's value."""
    runs_dir = tmp_path_factory.mktemp("canary") / "runs"

    def run(scenario, unit="vllm-minimax", **given):
        parameters = {"host": f"rehearsal:{scenario}", "unit": unit, **QUICK, **given}
        result = run_headless("50-benchmark", parameters, runs_dir=runs_dir)
        sections = {entry.name: entry for entry in result.record.sections}
        return result, sections["canary"].value, list(sections), runs_dir

    return run


def test_first_then_same_then_corrupt(sections_of):
    """Kept once, the same on another start, and a damaged model is stopped before the load with the token named.

    The second run is compared with the first one, whose figures had nothing to be compared with.
    """
    first_run, canary, _, runs_dir = sections_of("healthy")
    assert (first_run.exit_code, canary["verdict"]) == (0, "first")
    (kept,) = (runs_dir / "fingerprints").iterdir()
    first = kept.read_bytes()
    assert json.loads(first)["dtype"] == "fp8"
    result, canary, _, _ = sections_of("healthy")
    assert (canary["verdict"], canary["distance_nats"]) == ("same", 0.0)
    compared = next(entry.value for entry in result.record.sections if entry.name == "compare")
    assert (compared["baseline"], compared["differences"]) == (first_run.folder.name, [])
    assert {change["figure"] for change in compared["changes"] if change["is_gating"]} == set(GATING)
    result, canary, names, _ = sections_of("garbage-weights")
    assert (result.exit_code, canary["verdict"], result.record.cause) == (2, "corrupt", "checkpoint/corrupt")
    assert "instead of" in canary["parts_at"]
    assert names[-1] == "canary"
    assert "compare" not in names
    assert kept.read_bytes() == first
    assert (result.folder / "next-10-verify-download.ipynb").is_file()


def test_a_program_that_dies_is_not_a_verdict():
    """Without the program's answer nothing was found out."""
    host = FakeHost()
    host.programs["canary"] = "Traceback"
    with pytest.raises(UnexpectedAnswer, match="without an answer"):
        take_fingerprint(host, unit="u", port=1)


def test_nobody_listens():
    """A closed port is a fingerprint without answers, each with its error."""
    taken = take_fingerprint(FakeHost(), unit="u", port=9, deadline_s=5)
    assert len(taken.continuations) == len(PROMPTS) + 1
    assert all(each.error.startswith("connect") for each in taken.continuations)
