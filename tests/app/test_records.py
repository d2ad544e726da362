"""Whole records: read back, put on one time line whose rows lead somewhere, as values and DataFrames."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opslib.app.records import diff_frame, incident_frame, read_runs, timeline_frame
from opslib.app.reviewing import select_records
from opslib.domain.run_diff import diff_runs
from opslib.domain.run_incident import incident
from opslib.domain.run_timeline import timeline
from opslib.errors import BadParameter, UnknownName
from opslib.records.folder import RunFolder
from tests.domain.run_records import cured_run, failed_run, lay_down

EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"


@pytest.fixture
def runs_dir(tmp_path) -> Path:
    """The two deploys of the story, as they lie in folders."""
    return lay_down(tmp_path)


def test_what_was_written_is_read_back(runs_dir):
    """A record read back from its folder tells the same as the values that it was written from."""
    told, expected = timeline(read_runs(runs_dir, ticket="inc-7")), timeline([failed_run(), cured_run()])
    assert [(row.at, row.text, row.file, row.line) for row in told.rows] == [
        (row.at, row.text, row.file, row.line) for row in expected.rows
    ]


@pytest.mark.parametrize("where", ["story", "examples"])
def test_every_row_leads_to_a_line_that_is_there(runs_dir, where):
    """The file that a row names is in the record, and has that line; the rows are in order."""
    place = runs_dir if where == "story" else EXAMPLES
    told = timeline(read_runs(place), is_whole=True)
    assert told.rows
    assert [row.at for row in told.rows] == sorted(row.at for row in told.rows)
    for row in told.rows:
        lines = (place / row.record / row.file).read_text().splitlines()
        assert row.line is None or 1 <= row.line <= len(lines)


def test_frames_hold_what_the_values_do(runs_dir):
    """Each of the stories is a DataFrame with a row per thing and typed times."""
    a, b = read_runs(runs_dir)
    rows = timeline([a, b]).rows
    frame = timeline_frame(timeline([a, b]))
    assert (len(frame), str(frame["at"].dtype)[:10]) == (len(rows), "datetime64")
    assert set(diff_frame(diff_runs(a, b))["kind"]) == {"flag", "figure", "verdict"}
    kinds = list(incident_frame(incident("INC-7", [a, b]))["kind"])
    assert kinds[:4] == ["impact began", "impact ended", "detected", "cause"]


def test_which_records_are_read(runs_dir):
    """By name or by what they were about, oldest first; none is refused."""
    names = [run.name for run in read_runs(runs_dir)]
    assert names == sorted(names)
    assert [run.name for run in read_runs(runs_dir, ["last", "2026-11-29T12:00:00"])] == names[::-1]
    with pytest.raises(UnknownName, match="no record with ticket INC-8"):
        read_runs(runs_dir, ticket="INC-8")


@pytest.mark.parametrize(
    ("wanted", "n_found"),
    [
        ({"ticket": "INC-7"}, 2),
        ({"cause": "gpu-memory"}, 2),
        ({"cause": "gpu-memory/sampler-warmup"}, 2),
        ({"cause": "gpu"}, 0),
        ({"model": "m"}, 2),
        ({"since": "2026-11-29T12:05"}, 1),
        ({"until": "2026-11-29T12:05"}, 1),
        ({"since": "2026-11-29", "until": "2026-11-29"}, 2),
        ({"until": "2026-11-28"}, 0),
    ],
)
def test_records_are_chosen_by_ticket_cause_model_and_time(runs_dir, wanted, n_found):
    """A record is listed when it matches all that is asked; a day as the end is meant whole."""
    assert len(select_records(runs_dir, **wanted)) == n_found


def test_how_long_ago(runs_dir):
    """`since` may say how long ago; what is no moment is refused."""
    ago = datetime.now(UTC) - timedelta(hours=2)
    record = failed_run().record.model_copy(update={"started_at": ago})
    RunFolder.create(runs_dir, "h", "u", "90-deploy", ago).write_record(record)
    assert len(select_records(runs_dir, since="3h", until="1h")) == 1
    with pytest.raises(BadParameter, match="no moment"):
        select_records(runs_dir, since="yesterday")
