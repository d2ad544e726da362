"""Journald's rate limit of one unit: so many entries in an interval, the rest dropped and counted."""

from math import isinf


class RateLimit:
    """The state of one unit's limit (systemd 252, journald-rate-limit.c; one pool for all priorities).

    >>> limit = RateLimit()
    >>> limit.set(interval_s=1.0, burst=2)
    >>> [limit.take(at_s) for at_s in (0.0, 0.1, 0.2, 0.3, 1.1)]
    [0, 0, None, None, 2]
    """

    def __init__(self) -> None:
        self._interval_s, self._burst = 0.0, 0
        self._began_s, self._n_taken, self._n_dropped = 0.0, 0, 0

    def set(self, *, interval_s: float, burst: int) -> None:
        """The unit's own limit; 0 is taken as not set, and then nothing is dropped here."""
        self._interval_s, self._burst = (0.0 if isinf(interval_s) else interval_s), burst

    def take(self, at_s: float) -> int | None:
        """None where the entry is dropped; else how many were dropped before it, to be said first."""
        if not self._interval_s or not self._burst:
            return 0
        if not self._n_taken or at_s > self._began_s + self._interval_s:
            n_dropped, self._n_dropped = self._n_dropped, 0
            self._began_s, self._n_taken = at_s, 1
            return n_dropped
        if self._n_taken < self._burst:
            self._n_taken += 1
            return 0
        self._n_dropped += 1
        return None
