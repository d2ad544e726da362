"""Quantities with their uncertainty."""

from math import hypot
from typing import NamedTuple


class Band(NamedTuple):
    """A quantity in GiB with its uncertainty; independent ones combine as root of the sum of squares."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Band") -> "Band":  # type: ignore[override]
        """The sum of two independent quantities."""
        expected = self.expected + other.expected
        below = hypot(self.expected - self.low, other.expected - other.low)
        above = hypot(self.high - self.expected, other.high - other.expected)
        return Band(expected - below, expected, expected + above)

    def minus(self, other: "Band") -> "Band":
        """The difference of two independent quantities."""
        return self + Band(-other.high, -other.expected, -other.low)

    def times(self, factor: float) -> "Band":
        """Each bound times a positive factor."""
        return Band(self.low * factor, self.expected * factor, self.high * factor)

    def shifted(self, by: float) -> "Band":
        """The same with a known quantity added."""
        return Band(self.low + by, self.expected + by, self.high + by)

    def at_least(self, floor: float) -> "Band":
        """The same, where less than `floor` is not possible."""
        return Band(max(floor, self.low), max(floor, self.expected), max(floor, self.high))


def exactly(value: float) -> Band:
    """A quantity that is known."""
    return Band(value, value, value)


def larger(one: Band, other: Band) -> Band:
    """The larger of two quantities."""
    return Band(max(one.low, other.low), max(one.expected, other.expected), max(one.high, other.high))


def spanning(bands: list[Band], expected: Band) -> Band:
    """One of several bands, it isn't known which: from the lowest to the highest, `expected` in the middle."""
    return Band(min(band.low for band in bands), expected.expected, max(band.high for band in bands))
