"""Kept versions of a file, and the last deploy that is known to have served."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from opslib.domain.facts.journal import journal_command
from opslib.domain.states import Value
from opslib.errors import BadParameter, UnknownName

_BACKUP = re.compile(r"\.(?P<stamp>\d{8}T\d{6}\.\d{6}Z)\.bak$")
_FORMAT = "%Y%m%dT%H%M%S.%fZ"


class KeptVersion(Value):
    """A version of a file: where it lies, and until when it was in place (None: it is in place now)."""

    path: str
    kept_at: datetime | None = None

    @property
    def name(self) -> str:
        """What `--to` calls it: its time stamp, or "now"."""
        return f"{self.kept_at:{_FORMAT}}" if self.kept_at else "now"


class GoodDeploy(Value):
    """What a unit served with: its text, the model, the environment file of then, and how that is known."""

    unit_text: str
    known_from: str
    served_at: datetime | None = None
    environment_path: str = ""  # the kept version that has to come back, "" where the present one is that of then
    model_path: str = ""
    model_digest: str = ""  # of its index, where a record knows it


def served_command(unit: str) -> tuple[str, ...]:
    """Asks when the unit's engine said that it serves; needs systemd 237 and PCRE2, exit status 1 means never."""
    return (*journal_command(unit), "--grep=Application startup complete")


def list_kept(path: str, names: Sequence[str]) -> tuple[KeptVersion, ...]:
    """The kept versions of a file among the paths beside it, the newest first; the one in place is not among them.

    >>> [kept.name for kept in list_kept("/u/a.service", ["/u/a.service.20260301T100000.000000Z.bak", "/u/b.service"])]
    ['20260301T100000.000000Z']
    """
    kept = []
    for name in names:
        found = _BACKUP.search(name)
        if found and name[: found.start()] == path:
            kept_at = datetime.strptime(found["stamp"], _FORMAT).replace(tzinfo=UTC)
            kept.append(KeptVersion(path=name, kept_at=kept_at))
    return tuple(sorted(kept, key=lambda version: version.path, reverse=True))


def version_at(kept: Sequence[KeptVersion], moment: datetime) -> KeptVersion | None:
    """The version that was in place at a moment: the first that was replaced after it; None: the one in place now."""
    later = [version for version in kept if version.kept_at and version.kept_at > moment]
    return min(later, key=lambda version: version.path, default=None)


def choose_version(kept: Sequence[KeptVersion], wanted: str) -> KeptVersion:
    """The version that `--to` means: "-1" the one before, "-2" the one before that, or the beginning of its time stamp.

    Raises UnknownName for none, BadParameter for several.
    """
    if re.fullmatch(r"-[1-9]\d?", wanted):
        if int(wanted[1:]) <= len(kept):
            return kept[int(wanted[1:]) - 1]
        raise UnknownName(f"only {len(kept)} earlier versions are kept")
    found = [version for version in kept if version.name.startswith(wanted)]
    if not found:
        known = ", ".join(version.name for version in kept[:5]) or "none"
        raise UnknownName(f"no kept version {wanted!r}; the newest: {known}")
    if len(found) > 1:
        raise BadParameter(f"{wanted!r} means {len(found)} versions; give more of the time stamp")
    return found[0]


def served_version(
    kept: Sequence[KeptVersion], served_at: Sequence[datetime]
) -> tuple[KeptVersion | None, datetime] | None:
    """The version that was in place when the unit served last, and when that was; None where it never did."""
    if not served_at:
        return None
    last = max(served_at)
    return version_at(kept, last), last
