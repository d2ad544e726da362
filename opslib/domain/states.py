"""What every value of the domain is (`Value`), and judgements: one of four states, always with its evidence."""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class State(StrEnum):
    """How a check came out; *unknown* means that it could not be found out."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The exit code that says the same, as monitoring plugins do: ok 0, warning 1, critical 2, unknown 3."""
        return _EXIT_CODES[self]


_EXIT_CODES = {State.OK: 0, State.WARNING: 1, State.CRITICAL: 2, State.UNKNOWN: 3}
_SEVERITY = (State.OK, State.WARNING, State.UNKNOWN, State.CRITICAL)


class Value(BaseModel):
    """Base of all values that floors hand to each other: immutable, strict about unknown fields, JSON in and out."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckResult(Value):
    """What one check found: its state, one sentence, and the lines it rests on."""

    name: str
    state: State
    summary: str
    evidence: tuple[str, ...] = ()


class Outcome(Value):
    """How a run ended: the state and the sentence that an operator reads."""

    state: State
    reason: str


def worst(states: Iterable[State]) -> State:
    """The most severe of `states` (critical, then unknown, warning, ok); ok for none.

    >>> worst([State.OK, State.UNKNOWN, State.WARNING]).value
    'unknown'
    """
    return max(states, key=_SEVERITY.index, default=State.OK)
