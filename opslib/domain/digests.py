"""What files should be: listings that an operator brings, in the forms in which hubs and tools write them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.states import Value
from opslib.errors import BadParameter

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SUM_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<path>.+)")


class ExpectedFile(Value):
    """One file as it should be: SHA-256 (64 digits) or git blob id (40), and size; None where it isn't told."""

    path: str
    digest: str | None = None
    size: int | None = None


class Expectation(Value):
    """All files as they should be, from where, and at which commit."""

    source: str
    files: tuple[ExpectedFile, ...]
    commit: str | None = None

    def rows(self) -> dict[str, dict[str, Any]]:
        """By path, as the on-host program takes them."""
        return {
            file.path: {"digest": file.digest, "size": file.size, "source": self.source}
            for file in self.files
            if file.path
        }


class HashingSpeed(Value):
    """How fast a host hashes: the hasher it would take, how many at once, bytes per second of each on one core."""

    name: str
    n_processes: int
    measured: Mapping[str, int] = {}
    read_bytes_per_s: int | None = None  # of one reader, from cache or disk

    @property
    def bytes_per_s(self) -> float:
        """What all processes hash in a second, unless the disk is slower."""
        return float(self.measured.get(self.name, 0) * self.n_processes)

    def duration_s(self, n_bytes: int) -> float | None:
        """How long hashing so many bytes would take; None where nothing was measured."""
        return n_bytes / self.bytes_per_s if self.bytes_per_s else None


def parse_expectation(text: str, source: str) -> Expectation:
    """What a file says that a checkpoint should be; raises BadParameter for a form that isn't known.

    Known: the hub's answers to `/api/models/REPO/tree/COMMIT?recursive=true` (a list) and `/api/models/REPO?blobs=true`
    (with siblings), a manifest of ours and lists of sha256sum.

    >>> parse_expectation('[{"type": "file", "path": "a", "size": 3, "oid": "' + "0" * 40 + '"}]', "x").files[0].size
    3
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        files = tuple(_from_lines(text))
        if not files:
            raise BadParameter(f"{source}: neither JSON nor a list of sha256sum") from None
        return Expectation(source=source, files=files)
    commit = document.get("sha") or document.get("commit") if isinstance(document, dict) else None
    files = tuple(_from_json(document))
    if not files:
        raise BadParameter(f"{source}: no files in it; a hub's listing has a list of files or `siblings`")
    return Expectation(source=source, files=files, commit=commit if isinstance(commit, str) else None)


def render_manifest(sha256: Mapping[str, str], sizes: Mapping[str, int], *, commit: str | None = None) -> str:
    """A manifest of ours: {"commit", "files": {path: {"sha256", "size"}}}."""
    files = {path: {"sha256": digest, "size": sizes.get(path)} for path, digest in sorted(sha256.items())}
    return json.dumps({"commit": commit, "files": files}, indent=1, ensure_ascii=False) + "\n"


def _from_json(document: Any) -> Iterator[ExpectedFile]:
    if isinstance(document, dict) and isinstance(document.get("files"), dict):
        for path, row in document["files"].items():
            digest = row if isinstance(row, str) else row.get("sha256") if isinstance(row, dict) else None
            yield _file(path, digest, row.get("size") if isinstance(row, dict) else None)
        return
    rows = document.get("siblings") if isinstance(document, dict) else document
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("type") == "directory":
            continue
        lfs = row.get("lfs") if isinstance(row.get("lfs"), dict) else {}
        digest = (lfs or {}).get("sha256") or (lfs or {}).get("oid") or row.get("blobId") or row.get("oid")
        yield _file(row.get("path") or row.get("rfilename"), digest, row.get("size"))


def _from_lines(text: str) -> Iterator[ExpectedFile]:
    for line in text.splitlines():
        match = _SUM_LINE.fullmatch(line.strip())
        if match:
            yield _file(match["path"].removeprefix("./"), match["digest"], None)


def _file(path: Any, digest: Any, size: Any) -> ExpectedFile:
    plain = str(digest or "").lower().removeprefix("sha256:")
    if not isinstance(path, str) or not path:
        raise BadParameter("a listing with a file without a path")
    return ExpectedFile(
        path=path,
        digest=plain if _DIGEST.fullmatch(plain) else None,
        size=size if isinstance(size, int) and not isinstance(size, bool) else None,
    )
