"""Who did what to a record, and which of its sections may not be run again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from opslib.domain.states import State, Value


class Action(Value):
    """One thing that an operator, or a schedule in their name, did in a run."""

    at: datetime
    user: str  # `login`, or `root (sudo by login)`
    by: Literal["JupyterLab", "headless"]
    what: Literal["ran", "refused", "unfroze"]
    section: str
    state: State | None = None
    detail: str = ""


def frozen_by(actions: Sequence[Action], section: str) -> Action | None:
    """The run of a section that succeeded and was not unfrozen since; None where it may be run (again)."""
    for action in reversed(actions):
        if action.section != section or action.what == "refused":
            continue
        is_success = action.what == "ran" and action.state in (State.OK, State.WARNING)
        return action if is_success else None
    return None
