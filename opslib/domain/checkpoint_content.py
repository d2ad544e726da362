"""Are the bytes right? What the sample or the full scan saw, and the digests against those that are recorded."""

from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.checkpoint_listing import Listing, Problem, plural

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_MASKS = ("mask", "bias")  # these may well hold -inf


def content_problems(listing: Listing) -> Iterator[Problem]:
    """Everything about the bytes within the files; what is proven to the bit is not suspected for its zeros."""
    if listing.level == "digest":
        yield from _digest_problems(listing)
    proven = _proven(listing)
    for scan in listing.scans:
        path = str(scan["path"])
        if path in proven:
            continue
        if scan.get("problem"):
            yield Problem("unreadable", path, f"could not be read: {scan['problem']}")
        for run in scan.get("runs", ()):
            if not (listing.is_practice and is_blank(run)):
                yield _run_problem(path, run)
        for special in scan.get("specials", ()):
            if special["kind"] == "nan" or not any(word in special["tensor"] for word in _MASKS):
                detail = f"tensor {special['tensor']} ({special['dtype']}): element {special['element']:,}"
                name = "NaN" if special["kind"] == "nan" else "infinite"
                yield Problem(special["kind"], path, f"{detail} is {name}", "finite numbers", name)


def unverifiable(listing: Listing) -> tuple[str, ...]:
    """The hashed files with no known digest to compare with."""
    return tuple(sorted(str(row["path"]) for row in listing.digests if not row["problem"] and not row["expected"]))


def is_blank(run: Mapping[str, Any]) -> bool:
    """Whether a run of zeros is a hole over whole tensors up to the file's end, as the practice host's weights are."""
    return bool(run["kind"] == "hole" and run["is_tail"] and run["n_whole"] == run["n_tensors"])


def _proven(listing: Listing) -> set[str]:
    return {
        str(row["path"])
        for row in listing.digests
        if row["expected"] and all(one["digest"] in row["digests"].values() for one in row["expected"])
    }


def _run_problem(path: str, run: Mapping[str, Any]) -> Problem:
    size = run["end"] - run["begin"]
    n_whole, names = int(run["n_whole"]), run["names"]
    if run["kind"] == "constant":
        kind = "constant-run"
    elif run["is_rows"]:
        kind = "zero-rows"
    elif run["kind"] == "hole":
        kind = "sparse-hole"
    elif n_whole == run["n_tensors"] == 1:
        kind = "zero-tensor"
    else:
        kind = "zero-tail" if run["is_tail"] else "zero-tensor" if n_whole else "zero-run"
    what = "of one repeated value" if kind == "constant-run" else "of zeros"
    where = f"{plural(n_whole, 'whole tensor')}" if n_whole else f"{plural(int(run['n_tensors']), 'tensor')}"
    end = ", to the end of the file" if run["is_tail"] else ""
    detail = f"{plural(size, 'byte')} {what} from byte {run['begin']:,}{end}: {where}, such as {names[0]}"
    return Problem(kind, path, detail, "weights", f"{plural(size, 'byte')} {what}")


def _digest_problems(listing: Listing) -> Iterator[Problem]:
    owners = {row["digest"]: answer["path"] for answer in listing.digests for row in answer["expected"]}
    for answer in listing.digests:
        path = str(answer["path"])
        if answer["problem"]:
            yield Problem("unreadable", path, f"could not be hashed: {answer['problem']}")
            continue
        wrong = [row for row in answer["expected"] if row["digest"] not in answer["digests"].values()]
        if wrong:
            yield _mismatch(path, answer, wrong[0], owners)
    unknown = [path for path in unverifiable(listing) if path.endswith(_WEIGHTS)]
    if unknown:
        n_weights = sum(str(row["path"]).endswith(_WEIGHTS) for row in listing.digests)
        detail = f"no digest is known for {len(unknown)} of {n_weights} weight files, so no bit of them is proven"
        yield Problem("no-digest", unknown[0], detail, "a digest to compare with", "none")


def _mismatch(path: str, answer: Mapping[str, Any], row: Mapping[str, Any], owners: Mapping[str, str]) -> Problem:
    is_sha256 = len(row["digest"]) == 64
    found = answer["digests"].get("sha256" if is_sha256 else "sha1", "")
    owner = next((owners[digest] for digest in answer["digests"].values() if digest in owners), None)
    if owner and owner != path:
        detail = f"{path} holds what {owner} should ({row['source']})"
        return Problem("swapped", path, detail, row["digest"], found)
    differs = f"its {'SHA-256' if is_sha256 else 'SHA-1'} begins {found[:12]}, {row['digest'][:12]} was recorded"
    detail = f"{path} is not the file that was downloaded: {differs} ({row['source']})"
    return Problem("digest-mismatch", path, detail, row["digest"], found)
