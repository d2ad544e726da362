"""Time spans as systemd writes them (systemd.time(7))."""

import re
from math import inf

_UNITS_S = {
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_time_span(text: str) -> float | None:
    """Seconds of a time span, `inf` for "infinity", None for what is none.

    >>> parse_time_span("1min 30s"), parse_time_span("1800"), parse_time_span("infinity"), parse_time_span("soon")
    (90.0, 1800.0, inf, None)
    """
    if text.strip() == "infinity":
        return inf
    total, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match[2] not in _UNITS_S:
            return None
        total += float(match[1]) * _UNITS_S[match[2]]
        position = match.end()
    return total if text.strip() else None
