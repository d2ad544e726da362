"""What changed since a unit last worked."""

from datetime import UTC, datetime

from opslib.domain.diagnosis import Diagnosis
from opslib.domain.snapshot import Snapshot, compare_snapshots
from opslib.domain.states import State
from opslib.domain.verdict_card import SeenBefore, VerdictCard

OLD = Snapshot(
    taken_at=datetime(2026, 1, 1, tzinfo=UTC),
    unit_text="[Service]\nUser=llm\nExecStart=/v serve m\n",
    argv=("/v", "serve", "m", "--port", "8000"),
    environment_names=("A",),
    engine_version="0.15.0",
    driver_version="570",
    model_digest="aa",
    held_by_others_bytes={"0": 0},
)


def test_each_difference_once():
    """Flags, variables, versions, unit settings, model and memory held by others."""
    new = OLD.model_copy(
        update={
            "unit_text": "[Service]\nUser=root\nExecStart=/v serve m\n",
            "argv": ("/v", "serve", "m", "--port", "8001", "--enforce-eager"),
            "environment_names": ("A", "B"),
            "engine_version": "0.16.0",
            "model_digest": "bb",
            "held_by_others_bytes": {"0": 40 << 30},
        }
    )
    told = {change.what: (change.before, change.now) for change in compare_snapshots(OLD, new)}
    assert told == {
        "--port": ("8000", "8001"),
        "--enforce-eager": ("absent", "set"),
        "variable B": ("absent", "set"),
        "engine": ("0.15.0", "0.16.0"),
        "model index (sha256)": ("aa", "bb"),
        "unit file": ("User=llm", "User=root"),
        "held by others on GPU 0": ("0.0 GiB", "40.0 GiB"),
    }


def test_what_is_not_known_is_not_compared():
    """A figure that could not be had then or now is no change."""
    assert compare_snapshots(OLD, Snapshot(taken_at=OLD.taken_at)) == ()
    assert compare_snapshots(OLD, OLD) == ()


def test_the_card_says_that_there_is_nothing_to_compare_with():
    """Looked for and not found is told; not looked for isn't."""
    diagnosis = Diagnosis(cause="unknown", confidence="low", summary="no line says why")
    assert VerdictCard(diagnosis=diagnosis).parts == ()
    (title, lines), *_ = VerdictCard(diagnosis=diagnosis, is_compared=True).parts
    assert (title, lines[0].startswith("nothing to compare with")) == ("What changed since it last worked", True)
    seen = SeenBefore(folder="f", host="h", unit="u", seen_at="2026-01-01 10:00", summary="cured")
    card = VerdictCard(diagnosis=diagnosis, seen_before=(seen,))
    assert card.parts == (("Seen before", ("2026-01-01 10:00 on h, u: cured (f)",)),)
    assert card.state is State.UNKNOWN
