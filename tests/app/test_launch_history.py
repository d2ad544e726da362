"""Durations of earlier launches come from the records of the same unit on the same host."""

from datetime import UTC, datetime, timedelta

from opslib.app.launch_history import read_durations
from opslib.domain.launch_phases import PhaseTrack
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.states import State
from opslib.records.folder import RunFolder

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)


def keep(runs_dir, unit, hour, state="ready", seconds=60):
    """A record of one launch whose weights took so many seconds."""
    track = PhaseTrack()
    for phase, at in (("importing", 0), ("weights", 10), ("serving", 10 + seconds)):
        track.move(phase, T0 + timedelta(seconds=at))
    value = {"state": state, "phases": [span.model_dump(mode="json", exclude_none=True) for span in track.spans]}
    started_at = T0 + timedelta(hours=hour)
    section = SectionRecord(
        name="launch", state=State.OK, summary="", value=value, started_at=started_at, duration_s=1.0
    )
    folder = RunFolder.create(runs_dir, "gpu-a", unit, "30-launch", started_at)
    folder.write_record(
        RunRecord(
            runbook="30-launch", parameters={}, host="gpu-a", unit=unit, started_at=started_at, sections=(section,)
        )
    )


def test_only_good_launches_of_this_unit_count(tmp_path):
    """The newest five that became ready, of this unit; a serving phase has no usual length."""
    keep(tmp_path, "other", 1)
    keep(tmp_path, "vllm", 2, state="crashed")
    for n in range(7):
        keep(tmp_path, "vllm", 3 + n, seconds=60 + n)
    found = read_durations(tmp_path, "gpu-a", "vllm")
    assert [launch["weights"] for launch in found] == [66.0, 65.0, 64.0, 63.0, 62.0]
    assert set(found[0]) == {"importing", "weights"}
    assert read_durations(tmp_path, "gpu-b", "vllm") == ()
