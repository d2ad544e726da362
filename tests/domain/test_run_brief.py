"""The brief of a record: fifteen lines at most, narrow, without secrets."""

import pytest

from opslib.domain.run_brief import MOST_LINES, WIDEST, brief
from opslib.domain.run_facts import KeptRun
from opslib.domain.states import Outcome, State
from tests.domain.run_records import cured_run, failed_run, record, section

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF"


def wordy() -> KeptRun:
    """A run of which everything is long."""
    run, long = cured_run(), "very long words " * 40
    steps = [{"title": f"install /etc/systemd/system/{number}.service", "state": "ok"} for number in range(30)]
    sections = [*run.record.sections, *(section(f"more-{n}", State.WARNING, 700 + n, long) for n in range(20))]
    sections.append(section("install", State.OK, 800, value={"steps": steps}))
    outcome = Outcome(state=State.WARNING, reason=f"{long}{TOKEN}")
    changed = run.record.model_copy(update={"sections": tuple(sections), "outcome": outcome})
    return run.model_copy(update={"record": changed})


@pytest.mark.parametrize("run", [failed_run(), cured_run(), wordy(), KeptRun(name="r", record=record(0))])
def test_it_is_brief(run):
    """Whatever a record holds: at most fifteen lines of a hundred columns, the record's name the last."""
    lines = brief(run)
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDEST
    assert lines[-1].split() == ["record", run.name]


def test_it_says_what_a_hand_over_needs():
    """Where, how it ended, why, what was tried and what came of it."""
    told = "\n".join(brief(cured_run()))
    for words in (
        "gpu-a, vllm: ok",
        "INC-7",
        "by ops",
        "gpu-memory/sampler-warmup (high",
        "--max-num-seqs 256 (ready)",
    ):
        assert words in told


def test_it_is_redacted_once_more():
    """A token that an older record still held does not get into a ticket."""
    outcome = Outcome(state=State.CRITICAL, reason=f"login failed with {TOKEN}")
    told = "\n".join(brief(KeptRun(name="r", record=record(0, outcome=outcome))))
    assert "login failed" in told
    assert TOKEN not in told
