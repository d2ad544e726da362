"""A host's clock that may be set while a launch is watched: later times are told as if it had not been."""

from datetime import datetime, timedelta

_STEP_S = 1.0  # a clock that differs by more was set


class HostClock:
    """Compares wall clock and monotonic clock of one boot, and takes what was set out of every later time."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._set_by_s = 0.0

    def look(self, at: datetime, monotonic_s: float | None, *, is_same_boot: bool = True) -> float:
        """The seconds by which the clock was set since the last look, 0.0 where it was not."""
        if monotonic_s is None:
            return 0.0
        before = self._offset if is_same_boot else None
        self._offset = at.timestamp() - monotonic_s
        step_s = self._offset - before if before is not None else 0.0
        if abs(step_s) <= _STEP_S:
            return 0.0
        self._set_by_s += step_s
        return step_s

    def corrected(self, at: datetime) -> datetime:
        """The time as the clock would have told it."""
        return at - timedelta(seconds=self._set_by_s) if self._set_by_s else at
