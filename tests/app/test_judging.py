"""The sentence that a run ends with: the news of each state, from the sections' answers."""

from datetime import UTC, datetime

import pytest

from opslib.app.run import Run, SectionResult
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import State
from opslib.records.folder import RunFolder
from opslib.views.records import ending
from tests.fakes import FakeHost

IDENTIFY = SectionResult(state=State.OK, summary="root@a answers")
READY = SectionResult(state=State.OK, summary="u is ready; cured by --max-num-seqs 256", is_headline=True)
FAST = SectionResult(state=State.OK, summary="90 tokens/s", is_headline=True)
DISTURBED = SectionResult(state=State.WARNING, summary="the client was disturbed", is_headline=True)
DIED = SectionResult(state=State.CRITICAL, summary="u died under load")
UNHEARD = SectionResult(state=State.UNKNOWN, summary="u is unreachable")


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([IDENTIFY], "root@a answers"),
        ([IDENTIFY, READY, FAST], "u is ready; cured by --max-num-seqs 256; 90 tokens/s"),
        ([IDENTIFY, READY, DISTURBED], "u is ready; cured by --max-num-seqs 256; the client was disturbed"),
        ([IDENTIFY, READY, DISTURBED, DIED], "u died under load"),
        ([IDENTIFY, READY, UNHEARD], "u is unreachable"),
    ],
)
def test_a_warning_takes_no_good_news_back(results, reason, tmp_path):
    """A good outcome tells its headlines, a warning tells them too; what is critical or unknown stands alone."""
    parameters = validate_parameters("90-deploy", {"host": "fake", "unit": "u"})
    started_at = datetime(2026, 11, 29, tzinfo=UTC)
    folder = RunFolder.create(tmp_path, "fake", "u", "90-deploy", started_at)
    record = new_record("90-deploy", parameters, FakeHost().settings, started_at=started_at)
    run = Run(parameters, FakeHost(), folder, record)
    for at, result in enumerate(results):
        run.keep(f"section-{at}", result, started_at=started_at, duration_s=0)
    assert run.judge().reason == reason


@pytest.mark.parametrize(
    ("state", "outcome", "line"),
    [
        ("ok", "u is ready; cured by --x 1", "a/b, cured by --x 1"),
        ("warning", "u is ready; cured by --x 1; slower", "a/b, cured by --x 1; slower"),
        ("critical", "u died", "a/b, cured by --x 1; u died"),
    ],
)
def test_a_list_says_a_cure_once(state, outcome, line):
    """A record's line names cause and cure once, and then only what was found beside them."""
    assert ending({"state": state, "outcome": outcome, "cause": "a/b", "cured_by": "--x 1"}) == line
