"""What the on-host program `verify` answers, and what a judgement about one file is made from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict

from opslib.domain.states import Value


class Listing(Value):
    """What was gathered in a directory; its shape may grow, so unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    level: str
    exists: bool
    problem: str | None = None
    commit: str | None = None  # of a hub cache's snapshot
    files: tuple[Mapping[str, Any], ...] = ()
    companions: Mapping[str, Mapping[str, Any]] = {}
    shards: tuple[Mapping[str, Any], ...] = ()
    indices: tuple[Mapping[str, Any], ...] = ()
    repeated: tuple[Mapping[str, Any], ...] = ()
    download: tuple[Mapping[str, Any], ...] = ()
    expect: Mapping[str, Mapping[str, Any]] = {}
    expect_commit: str | None = None
    header_bytes: int = 0
    scans: tuple[Mapping[str, Any], ...] = ()
    scanned_bytes: int = 0
    plan: Mapping[str, int] = {}
    digests: tuple[Mapping[str, Any], ...] = ()
    hasher: Mapping[str, Any] | None = None
    receipts_path: str | None = None
    is_practice: bool = False  # of the rehearsal host, whose weights are holes on purpose
    duration_s: float = 0.0

    @property
    def names(self) -> set[str]:
        """The paths of all files."""
        return {str(entry["path"]) for entry in self.files}


class Problem(NamedTuple):
    """One thing that is wrong: its kind (a row of the table), the file, a sentence, expected and found."""

    kind: str
    file: str
    detail: str
    expected: str | None = None
    found: str | None = None


def plural(count: int, word: str) -> str:
    """A number with its word.

    >>> plural(1, "tensor"), plural(2, "tensor")
    ('1 tensor', '2 tensors')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"
