"""Is a downloaded checkpoint whole? Judges what the on-host program `verify` gathered."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError

from opslib.domain.checkpoint_kinds import KINDS, cause_of
from opslib.domain.states import State, Value, worst
from opslib.errors import UnexpectedAnswer

GB = 10**9
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<total>\d+)\.safetensors")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "spiece.model")
_LEFTOVERS = (".incomplete", ".aria2", ".lock", ".part", ".crdownload")
_OTHER_LAYOUT = "consolidated"  # Mistral's own layout of the same weights, beside the sharded one
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


class Listing(Value):
    """What the on-host program `verify` answers; its shape may grow, so unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    level: str
    exists: bool
    problem: str | None = None
    files: tuple[Mapping[str, Any], ...] = ()
    companions: Mapping[str, Mapping[str, Any]] = {}
    shards: tuple[Mapping[str, Any], ...] = ()
    index: Mapping[str, Any] | None = None
    download: tuple[Mapping[str, Any], ...] = ()
    digests: tuple[Mapping[str, Any], ...] = ()
    duration_s: float = 0.0


class Finding(Value):
    """One thing about one file: its kind, what is wrong in a sentence, and what to do about it."""

    kind: str
    path: str
    state: State
    detail: str
    remedy: str = ""


class CheckpointReport(Value):
    """Whether a checkpoint is whole: state, findings, and the sums that planning needs."""

    path: str
    level: str
    state: State
    summary: str
    findings: tuple[Finding, ...] = ()
    layout: str = "plain"
    n_files: int = 0
    n_shards: int = 0
    n_expected_shards: int = 0
    total_bytes: int = 0  # of the weight files
    missing_shards: tuple[str, ...] = ()
    parameters_by_dtype: Mapping[str, int] = {}
    bytes_by_dtype: Mapping[str, int] = {}
    bytes_by_part: Mapping[str, int] = {}  # embedding, lm_head, expert, norm, router, latent, vision, other
    commit: str | None = None
    config: Mapping[str, Any] | None = None
    duration_s: float = 0.0

    @property
    def n_parameters(self) -> int:
        """Elements of all tensors; packed formats count their storage elements."""
        return sum(self.parameters_by_dtype.values())

    @property
    def cause(self) -> str | None:
        """What the first critical finding is called in the failure catalogue."""
        critical = (finding for finding in self.findings if finding.state is State.CRITICAL)
        return next((cause_of(finding.kind, finding.path) for finding in critical), None)


def parse_listing(text: str) -> Listing:
    """The listing among the program's JSON lines; raises UnexpectedAnswer where there is none."""
    for line in reversed(text.splitlines()):
        try:
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "listing":
                return Listing.model_validate(event)
        except (ValueError, ValidationError) as error:
            raise UnexpectedAnswer(f"the listing of the checkpoint can't be read: {line[:200]!r}") from error
    raise UnexpectedAnswer("the host answered without a listing of the checkpoint")


def judge_checkpoint(listing: Listing) -> CheckpointReport:
    """Whether every file the model needs is there and every header covers its file.

    Critical where vLLM would fail or read garbage, warning where something deserves a look, unknown where a file
    could not be read.
    """
    if listing.problem:
        return _absent(listing)
    expected = _expected_shards(listing)
    present = {str(shard["path"]) for shard in listing.shards}
    missing = tuple(sorted(expected - present - _unreadable(listing)))
    findings = tuple(_findings(listing, missing))
    loaded = [shard for shard in listing.shards if not expected or shard["path"] in expected]
    total = sum(int(shard["size"]) for shard in loaded)
    n_expected = max(len(expected), len(present) if not missing else 0)
    commits = Counter(note["commit"] for note in listing.download)
    return CheckpointReport(
        path=listing.path,
        level=listing.level,
        state=worst(finding.state for finding in findings),
        summary=_summary(len(present & expected or present), n_expected, total, findings),
        findings=findings,
        layout=_layout(listing),
        n_files=len(listing.files),
        n_shards=len(loaded),
        n_expected_shards=n_expected,
        total_bytes=total,
        missing_shards=missing,
        parameters_by_dtype=_sum(loaded, "parameters"),
        bytes_by_dtype=_sum(loaded, "dtype_bytes"),
        bytes_by_part=_sum(loaded, "part_bytes"),
        commit=commits.most_common(1)[0][0] if commits else None,
        config=_config(listing),
        duration_s=listing.duration_s,
    )


def _absent(listing: Listing) -> CheckpointReport:
    kind = "no-directory"
    finding = Finding(kind=kind, path=listing.path, state=State.CRITICAL, detail=f"{listing.path}: {listing.problem}")
    return CheckpointReport(
        path=listing.path, level=listing.level, state=State.CRITICAL, summary=finding.detail, findings=(finding,)
    )


def _expected_shards(listing: Listing) -> set[str]:
    """The weight files that should be there: those the index names, or those that a numbering implies."""
    if listing.index and listing.index.get("shards"):
        return set(listing.index["shards"])
    expected: set[str] = set()
    for shard in listing.shards:
        numbered = _NUMBERED.fullmatch(shard["path"])
        if numbered and int(numbered["total"]) <= 100_000:
            stem, total, width = numbered["stem"], numbered["total"], len(numbered["number"])
            expected |= {f"{stem}-{number:0{width}}-of-{total}.safetensors" for number in range(1, int(total) + 1)}
    return expected


def _unreadable(listing: Listing) -> set[str]:
    return {str(entry["path"]) for entry in listing.files if not entry["is_readable"]}


def _findings(listing: Listing, missing: Iterable[str]) -> Iterator[Finding]:
    commit = listing.download[0]["commit"] if listing.download else None
    for name in missing:
        yield _finding(listing, "missing-shard", name, f"{name} is missing", commit)
    yield from _shard_findings(listing, commit)
    yield from _index_findings(listing)
    yield from _companion_findings(listing)
    yield from _file_findings(listing, commit)
    yield from _digest_findings(listing, commit)
    if len({note["commit"] for note in listing.download}) > 1:
        yield _finding(listing, "mixed-revisions", ".cache/huggingface/download", "files of more than one commit")


def _finding(listing: Listing, kind: str, path: str, detail: str, commit: str | None = None) -> Finding:
    state, remedy = KINDS[kind]
    words = {
        "file": shlex.quote(path),
        "directory": shlex.quote(listing.path),
        "revision": f" --revision {shlex.quote(commit)}" if commit else "",
    }
    return Finding(kind=kind, path=path, state=state, detail=detail, remedy=remedy.format(**words))


def _shard_findings(listing: Listing, commit: str | None) -> Iterator[Finding]:
    expected = _expected_shards(listing)
    for shard in listing.shards:
        path, problem = str(shard["path"]), shard["problem"]
        if problem:
            yield _finding(listing, problem["kind"], path, problem["detail"], commit)
        elif shard["size"] < shard["extent"]:
            short = f"{shard['size']} bytes, its header promises {shard['extent']}"
            yield _finding(listing, "truncated", path, short, commit)
        elif shard["size"] > shard["extent"]:
            long = f"{shard['size'] - shard['extent']} bytes after the last tensor"
            yield _finding(listing, "trailing-bytes", path, long, commit)
        if listing.index and expected and path not in expected and not path.startswith(_OTHER_LAYOUT):
            yield _finding(listing, "stray-shard", path, "the index names no tensor in it")
    has_weights = listing.shards or any(entry["path"].endswith(_WEIGHTS) for entry in listing.files)
    if not has_weights:
        yield _finding(listing, "no-weights", listing.path, "no weight files (*.safetensors, *.gguf, *.bin)")


def _index_findings(listing: Listing) -> Iterator[Finding]:
    index = listing.index
    if index is None:
        return
    if index["problem"]:
        yield _finding(listing, "index-broken", index["path"], f"the index can't be used: {index['problem']}")
        return
    for difference in index["differences"]:
        count, names = difference["count"], difference["names"]
        detail = f"{count} tensor{'s' if count > 1 else ''}, such as {names[0]}"
        yield _finding(listing, difference["kind"], difference["path"], detail)
    named = [shard for shard in listing.shards if shard["path"] in index["shards"]]
    is_whole = len(named) == len(index["shards"]) and not any(shard["problem"] for shard in named)
    held = sum(_sum(named, "dtype_bytes").values())
    if is_whole and index["total_size"] not in {None, held}:
        detail = f"the index says {index['total_size']} bytes of tensors, the headers {held}"
        yield _finding(listing, "total-size", index["path"], detail)


def _companion_findings(listing: Listing) -> Iterator[Finding]:
    names = {str(entry["path"]) for entry in listing.files}
    is_adapter = "adapter_config.json" in names  # it is loaded beside its base model
    if (
        not is_adapter
        and "config.json" not in names
        and "params.json" not in names
        and not any(name.endswith(".gguf") for name in names)
    ):
        yield _finding(listing, "companion-missing", "config.json", "the model's config is missing")
    if not is_adapter and not names & set(_TOKENIZERS):
        yield _finding(listing, "companion-missing", "tokenizer.json", "no tokenizer file (tokenizer.json or another)")
    for name, answer in listing.companions.items():
        if answer.get("problem"):
            yield _finding(listing, "not-json", name, f"not valid JSON: {answer['problem']}")


def _file_findings(listing: Listing, commit: str | None) -> Iterator[Finding]:
    for entry in listing.files:
        path = str(entry["path"])
        if path.endswith(_LEFTOVERS):
            if not path.endswith(".lock"):  # hf download leaves its empty lock files behind
                yield _finding(listing, "leftover", path, f"an unfinished download left {entry['size']} bytes")
        elif path.startswith(".cache"):
            continue
        elif entry.get("is_dangling"):
            yield _finding(listing, "dangling-symlink", path, "a symlink to a file that is not there", commit)
        elif not entry["is_readable"]:
            yield _finding(listing, "unreadable", path, "may not be read by this login")
        elif entry.get("suspicion"):
            yield _finding(listing, entry["suspicion"], path, f"{entry['size']} bytes that are not the file", commit)
        elif entry["size"] == 0 and path.endswith((*_WEIGHTS, ".json", ".model")):
            yield _finding(listing, "zero-bytes", path, "the file is empty", commit)


def _digest_findings(listing: Listing, commit: str | None) -> Iterator[Finding]:
    if listing.level != "digests":
        return
    for answer in listing.digests:
        path, recorded, found = str(answer["path"]), str(answer["recorded"]), str(answer["found"])
        name = "SHA-256" if len(recorded) == 64 else "SHA-1"
        if answer["problem"]:
            yield _finding(listing, "unreadable", path, f"could not be hashed: {answer['problem']}")
        elif found != recorded:
            differs = f"its {name} begins {found[:12]}, {recorded[:12]} was recorded"
            yield _finding(
                listing, "digest-mismatch", path, f"{path} is not the file that was downloaded: {differs}", commit
            )
    unproven = [shard["path"] for shard in listing.shards if shard["path"] not in {a["path"] for a in listing.digests}]
    if unproven:
        detail = (
            f"no digest was recorded for {len(unproven)} of {len(listing.shards)} weight files, so no bit is proven"
        )
        yield _finding(listing, "no-digest", unproven[0], detail)


def _sum(shards: Iterable[Mapping[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for shard in shards:
        total.update(shard.get(key) or {})
    return dict(sorted(total.items()))


def _config(listing: Listing) -> Mapping[str, Any] | None:
    content = listing.companions.get("config.json", {}).get("content")
    return content if isinstance(content, dict) else None


def _layout(listing: Listing) -> str:
    if listing.download:
        return "hf-local-dir"
    return "hub-cache" if "/snapshots/" in f"{listing.path}/" else "plain"


def _summary(n_present: int, n_expected: int, total: int, findings: tuple[Finding, ...]) -> str:
    shards = f"{n_present} of {n_expected} shard{'s' if n_expected != 1 else ''}, {total / GB:.1f} GB"
    severe = [finding for finding in findings if finding.state is not State.WARNING]
    if not severe:
        notes = f"; {len(findings)} warning{'s' if len(findings) > 1 else ''}" if findings else ""
        return f"{shards}, every header covers its file{notes}"
    first = severe[0]
    more = f" (and {len(severe) - 1} more)" if len(severe) > 1 else ""
    detail = first.detail if first.path in first.detail else f"{first.path}: {first.detail}"
    return f"{shards}: {detail}{more}"
