"""Is a downloaded checkpoint whole and right? Judges what the on-host program `verify` gathered."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from opslib.domain.checkpoint_content import content_problems, unverifiable
from opslib.domain.checkpoint_files import file_problems
from opslib.domain.checkpoint_kinds import cause_of, kinds
from opslib.domain.checkpoint_listing import Listing, Problem
from opslib.domain.checkpoint_notes import notes_of, shown_size
from opslib.domain.checkpoint_repair import layout_of, repair_command
from opslib.domain.checkpoint_shards import loaded_shards, missing_shards, n_expected_shards, shard_problems
from opslib.domain.states import State, Value, worst
from opslib.errors import UnexpectedAnswer


class Finding(Value):
    """One thing about one file: what is wrong, what it does at run time, and what mends it."""

    file: str
    level: str  # at which it is found
    kind: str
    state: State
    expected: str | None = None
    found: str | None = None
    effect: str = ""
    repair: str = ""  # a command for the host's shell, or what to do where none helps
    detail: str = ""  # the sentence that an operator reads


class CheckpointReport(Value):
    """Whether a checkpoint is whole and right: state, findings, and the sums that planning needs."""

    path: str
    level: str
    state: State
    summary: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # what an operator may want to know, and nothing is wrong with
    layout: str = "plain"
    n_files: int = 0
    n_shards: int = 0
    n_expected_shards: int = 0
    total_bytes: int = 0  # of the weight files
    checked_bytes: int = 0  # that were read at this level, or proven by a receipt
    missing_shards: tuple[str, ...] = ()
    unverifiable: tuple[str, ...] = ()  # files with no known digest, at level digest
    hasher: Mapping[str, Any] | None = None
    sha256: Mapping[str, str] = {}  # by file, at level digest
    parameters_by_dtype: Mapping[str, int] = {}
    bytes_by_dtype: Mapping[str, int] = {}
    bytes_by_part: Mapping[str, int] = {}  # embedding, lm_head, expert, norm, router, latent, vision, other
    shards: tuple[tuple[str, int], ...] = ()  # weight files with their sizes, in order
    commit: str | None = None
    config: Mapping[str, Any] | None = None
    fingerprint: str = ""  # of all files' names, sizes and times: the same as long as nothing was written
    duration_s: float = 0.0

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors; packed formats count their storage elements."""
        return sum(self.parameters_by_dtype.values())

    def state_of(self, file: str) -> State:
        """The worst finding about one file."""
        return worst(finding.state for finding in self.findings if finding.file == file)

    def receipt(self, verified_at: str) -> dict[str, Any]:
        """What was verified, how deep, when and with which result: what a deploy rests on."""
        names = {
            "path",
            "level",
            "state",
            "summary",
            "commit",
            "n_files",
            "total_bytes",
            "checked_bytes",
            "fingerprint",
        }
        return {**self.model_dump(mode="json", include=names), "verified_at": verified_at}

    @property
    def cause(self) -> str | None:
        """What the first critical finding is called in the failure catalogue."""
        critical = (finding for finding in self.findings if finding.state is State.CRITICAL)
        return next((cause_of(finding.kind, finding.file) for finding in critical), None)


def parse_listing(text: str) -> Listing:
    """The listing among the program's JSON lines; raises UnexpectedAnswer where there is none."""
    for line in reversed(text.splitlines()):
        try:
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "listing":
                return Listing.model_validate(event)
        except (ValueError, RecursionError, ValidationError) as error:
            raise UnexpectedAnswer(f"the listing of the checkpoint can't be read: {line[:200]!r}") from error
    raise UnexpectedAnswer("the host answered without a listing of the checkpoint")


def judge_checkpoint(listing: Listing) -> CheckpointReport:
    """Whether every file the model needs is there and every header covers its file; deeper where it was read deeper.

    Critical where vLLM would fail or read garbage, warning where something deserves a look, unknown where a file
    could not be read.
    """
    if listing.problem:
        problem = Problem("no-directory", listing.path, f"{listing.path}: {listing.problem}")
        finding = _finding(listing, problem, "plain", None)
        return CheckpointReport(
            path=listing.path, level=listing.level, state=finding.state, summary=finding.detail, findings=(finding,)
        )
    commit = _commit(listing)
    layout = layout_of(listing.path, listing.files, has_metadata=bool(listing.download))
    problems = [*shard_problems(listing), *file_problems(listing), *content_problems(listing)]
    findings = tuple(_finding(listing, problem, layout, commit) for problem in problems)
    loaded = loaded_shards(listing)
    total = sum(int(shard["size"]) for shard in loaded)
    return CheckpointReport(
        path=listing.path,
        level=listing.level,
        state=worst(finding.state for finding in findings),
        summary=_summary(listing, len(loaded), total, findings),
        findings=findings,
        notes=notes_of(listing),
        layout=layout,
        n_files=len(listing.files),
        n_shards=len(loaded),
        n_expected_shards=n_expected_shards(listing),
        total_bytes=total,
        checked_bytes=_checked_bytes(listing),
        missing_shards=missing_shards(listing),
        unverifiable=unverifiable(listing),
        hasher=listing.hasher,
        sha256={row["path"]: row["digests"]["sha256"] for row in listing.digests if "sha256" in row["digests"]},
        parameters_by_dtype=_sum(loaded, "parameters"),
        bytes_by_dtype=_sum(loaded, "dtype_bytes"),
        bytes_by_part=_sum(loaded, "part_bytes"),
        shards=tuple((str(shard["path"]), int(shard["size"])) for shard in listing.shards),
        commit=commit,
        config=_config(listing),
        fingerprint=_fingerprint(listing),
        duration_s=listing.duration_s,
    )


def _finding(listing: Listing, problem: Problem, layout: str, commit: str | None) -> Finding:
    kind = kinds()[problem.kind]
    return Finding(
        file=problem.file,
        level=kind.level,
        kind=problem.kind,
        state=kind.state,
        expected=problem.expected,
        found=problem.found,
        effect=kind.effect,
        repair=repair_command(kind.repair, listing.path, problem.file, layout=layout, commit=commit),
        detail=problem.detail,
    )


def _commit(listing: Listing) -> str | None:
    commits = Counter(str(note["commit"]) for note in listing.download)
    return listing.expect_commit or listing.commit or (commits.most_common(1)[0][0] if commits else None)


def _fingerprint(listing: Listing) -> str:
    rows = sorted([str(entry["path"]), entry["size"], entry.get("mtime")] for entry in listing.files)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _checked_bytes(listing: Listing) -> int:
    if listing.level == "digest":
        hashed = {row["path"] for row in listing.digests if row["digests"]}
        return sum(int(entry["size"]) for entry in listing.files if entry["path"] in hashed)
    return listing.header_bytes + listing.scanned_bytes


def _sum(shards: Iterable[Mapping[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for shard in shards:
        total.update(shard.get(key) or {})
    return dict(sorted(total.items()))


def _config(listing: Listing) -> Mapping[str, Any] | None:
    content = listing.companions.get("config.json", {}).get("content")
    return content if isinstance(content, dict) else None


_PROVEN = {
    "extents": "every header covers its file",
    "sample": "every header covers its file, no zeros or NaN in the sample",
    "full-scan": "every header covers its file, no zeros or NaN",
}


def _summary(listing: Listing, n_shards: int, total: int, findings: Sequence[Finding]) -> str:
    n_expected = n_expected_shards(listing)
    shards = f"{n_shards} of {n_expected} shard{'s' if n_expected != 1 else ''}, {shown_size(total)}"
    severe = sorted((f for f in findings if f.state is not State.WARNING), key=lambda f: f.state is not State.CRITICAL)
    if not severe:
        notes = f"; {len(findings)} warning{'s' if len(findings) > 1 else ''}" if findings else ""
        return f"{shards}, {_PROVEN.get(listing.level) or _digests_sentence(listing)}{notes}"
    first = severe[0]
    more = f" (and {len(severe) - 1} more)" if len(severe) > 1 else ""
    detail = first.detail if first.file in first.detail else f"{first.file}: {first.detail}"
    return f"{shards}: {detail}{more}"


def _digests_sentence(listing: Listing) -> str:
    n_unknown = len(unverifiable(listing))
    right = f"{len(listing.digests) - n_unknown} of {len(listing.digests)} files have their digest"
    return f"{right}, {n_unknown} have none to compare with" if n_unknown else right
