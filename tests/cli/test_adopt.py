"""`opslib adopt`: what is said of a change."""

import pytest

from opslib.cli.adopt import words_of
from opslib.domain.states import State
from opslib.workflow.install import ApplyReport, StepResult

DONE = StepResult(title="write", state=State.OK, detail="")
FAILED = StepResult(title="reload", state=State.CRITICAL, detail="systemd refused")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((), "nothing had to change"),
        ((DONE, DONE), "2 steps done and verified; it counts from `opslib restart` on"),
        ((DONE, FAILED), "systemd refused"),
    ],
)
def test_a_restart_is_named_only_where_something_was_changed(steps, said):
    """Where nothing had to change, or a step did not hold, no restart is promised to bring anything."""
    state = steps[-1].state if steps else State.OK
    assert words_of(ApplyReport(host="a", state=state, steps=steps)) == said
