"""What a verification shows: the same values as picture, table and text; missing shards are seen, colours are not all."""

import pytest

from opslib.domain.checkpoint import CheckpointReport, Finding
from opslib.domain.digests import HashingSpeed
from opslib.domain.states import State
from opslib.views.verify import cost_rows, cost_shown, proof_of, proof_shown, shard_bars, shards_shown

NAMES = [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
FINDINGS = (
    Finding(file=NAMES[1], level="extents", kind="missing-shard", state=State.CRITICAL, detail="missing"),
    Finding(file=NAMES[2], level="sample", kind="inf", state=State.WARNING, detail="inf"),
)
BROKEN = CheckpointReport(
    path="/m",
    level="sample",
    state=State.CRITICAL,
    summary="one is missing",
    findings=FINDINGS,
    shards=((NAMES[0], 5 * 10**9), (NAMES[2], 5 * 10**9), (NAMES[3], 2 * 10**9)),
    missing_shards=(NAMES[1],),
    total_bytes=12 * 10**9,
    checked_bytes=10**8,
)
SPEED = HashingSpeed(name="hashlib", n_processes=2, measured={"hashlib": 10**9}, read_bytes_per_s=4 * 10**9)


def test_each_shard_has_its_worst_state():
    """In the order of names; a missing one has no size and is critical."""
    assert [(size, state.value) for _, size, state in shard_bars(BROKEN)] == [
        (5 * 10**9, "ok"), (0, "critical"), (5 * 10**9, "warning"), (2 * 10**9, "ok"),
    ]  # fmt: skip


def test_picture_table_and_text_say_the_same():
    """The state's sign stands in the picture, the rows in the table; no script, nothing to fetch."""
    shown = shards_shown("gpu-a", BROKEN)
    assert shown.text.startswith("✗ critical  gpu-a: 4 weight files, 2 of them with a finding")
    assert NAMES[1] in shown.text
    assert "<svg" in shown.html
    assert "✗" in shown.html
    assert "<script" not in shown.html
    assert shown.png.startswith(b"\x89PNG")
    assert shown.html == shards_shown("gpu-a", BROKEN).html


def test_nothing_there_is_no_crash():
    """A report without weights is a sentence."""
    empty = CheckpointReport(path="/m", level="extents", state=State.CRITICAL, summary="no such directory")
    assert shards_shown("a", empty).png is None
    assert cost_shown("a", empty, HashingSpeed(name="hashlib", n_processes=1)).text


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "no digest was computed"),
        ({"level": "digest", "sha256": {"a": "1", "b": "2"}}, "ok", "2 of 2 files are, to the bit"),
        ({"level": "digest", "sha256": {"a": "1", "b": "2"}, "unverifiable": ("b",), "findings": (Finding(
            file="b", level="digest", kind="no-digest", state=State.WARNING),)}, "warning", "1 of 2 files are"),
        ({"level": "digest", "findings": (Finding(
            file="b", level="digest", kind="swapped", state=State.CRITICAL),)}, "critical", "1 files are not"),
    ],
)  # fmt: skip
def test_what_is_proven_is_said_and_no_more(changes, state, words):
    """Below level digest nothing is proven; files without a known digest are named, never counted as verified."""
    report = BROKEN.model_copy(update={"findings": (), **changes})
    assert proof_of(report)[0] == state
    assert words in proof_of(report)[1]
    assert all(name in proof_shown("h", report).text for name in report.unverifiable)


def test_the_cost_follows_from_the_host_s_own_speed():
    """12 GB at 2 GB/s are 6 s, however fast the disk reads; the first and the last level are cheap."""
    assert [row[3] for row in cost_rows(BROKEN, SPEED)] == ["1 s", "1 s", "3 s", "6 s", "1 s"]
    assert cost_rows(BROKEN, HashingSpeed(name="hashlib", n_processes=1))[3][3] == "-"
