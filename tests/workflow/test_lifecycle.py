"""What is said of a start that leaves nothing to be seen, and of what a process was started with."""

from datetime import UTC, datetime

import pytest

from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.unit_files import UnitFiles
from opslib.workflow import lifecycle
from opslib.workflow.answering import differing_word

BEFORE = UnitStatus(unit="v.service", load_state="loaded", active_state="inactive", sub_state="dead")
STARTED_AT = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "state", "words"),
    [
        ({}, "unknown", "it ended at once, or it waits for another unit"),  # systemd forgot it, or its job waits
        ({"exec_main_start_at": STARTED_AT, "exec_main_code": 1}, "critical", "it is inactive: exited with status 0"),
    ],
)
def test_a_start_that_is_over_is_not_waited_for(changed, state, words, monkeypatch) -> None:
    """A unit that ended before it was looked at has no invocation id; that is said long before the time is up."""
    after = BEFORE.model_copy(update=changed)
    monkeypatch.setattr(lifecycle, "_look", lambda *_: ("inactive (dead)", (after, False)))
    monkeypatch.setattr(lifecycle, "_INACTIVE_S", 0.02)
    monkeypatch.setattr(lifecycle, "_INTERVAL_S", 0.01)
    check = lifecycle._wait_ready(None, UnitFiles(unit="v.service", parts=()), BEFORE, float("inf"), lambda _: None)
    assert (check.state, words in check.summary) == (state, True), check


@pytest.mark.parametrize(
    ("wanted", "running", "other"),
    [
        ("/bin/nice -n 5 /v/vllm serve /m", "/v/python /v/vllm serve /m", None),
        ("/v/vllm serve /m --host %H --port ${P}", "/v/python /v/vllm serve /m --host a --port 1", None),
        ("/v/vllm serve /m $A --port 1", "/v/python /v/vllm serve /m --port 1", None),
        ("/v/vllm serve /m $A --port 1", "/v/vllm serve /m --seed 2 --tp 3 --port 1", None),
        ("/v/vllm serve /m --seed 1 $A", "/v/vllm serve /m --seed 2 --port 1", "/m"),
        ("/v/vllm serve /m $A --port 1", "/v/vllm serve /m --seed 2 --port 2", "1"),
        ("/v/vllm serve /m --port 1", "/v/vllm", "1"),
        ("/bin/sleep 9", "/bin/sleep 9", None),
        ("/bin/sleep", "/bin/sleep", None),
    ],
)
def test_what_systemd_expands_is_no_difference(wanted, running, other) -> None:
    """What runs the engine, specifiers and variables may differ; every other word has to be there."""
    assert differing_word(wanted.split(), running.split()) == other
