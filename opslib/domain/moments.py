"""Moments as an operator types them: a day, a time in UTC, or how long ago."""

import re
from datetime import UTC, datetime, timedelta

from opslib.errors import BadParameter

_AGO = re.compile(r"(\d{1,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, now: datetime, *, is_end: bool = False) -> datetime | None:
    """The moment that `text` means, None for ""; a day alone is its beginning, with `is_end` its end.

    Raises BadParameter for what is no moment.

    >>> now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    >>> str(parse_moment("2h", now)), str(parse_moment("2026-11-28", now, is_end=True))
    ('2026-11-29 10:00:00+00:00', '2026-11-29 00:00:00+00:00')
    """
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
    except ValueError:
        raise BadParameter(f'{text!r} is no moment; as "2026-11-29", "2026-11-29T18:00" (UTC) or "2h", "7d"') from None
    return moment + timedelta(days=1) if is_end and len(text) == len("2026-11-29") else moment
