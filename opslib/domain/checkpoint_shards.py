"""Are all weight files there, does each header cover its file, and does the index agree?"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.checkpoint_listing import Listing, Problem, plural

_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<total>\d+)\.(?P<ending>safetensors|gguf)")
_OTHER_LAYOUT = "consolidated"  # Mistral's own layout of the same weights, beside the sharded one
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_MOST_PARTS = 100_000

Shard = Mapping[str, Any]


def expected_shards(listing: Listing) -> set[str]:
    """The weight files that should be there: those that an index names, or those that a numbering implies."""
    expected: set[str] = set()
    families = set()
    for index in listing.indices:
        if not index["problem"]:
            families.add(_family(index["path"]))
            expected |= set(index["shards"])
    for name in listing.names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None or "/" in name or int(numbered["total"]) > _MOST_PARTS:
            continue
        if numbered["ending"] == "safetensors" and _family(name) in families:
            continue
        stem, total, width = numbered["stem"], numbered["total"], len(numbered["number"])
        parts = range(1, int(total) + 1)
        expected |= {f"{stem}-{number:0{width}}-of-{total}.{numbered['ending']}" for number in parts}
    return expected


def missing_shards(listing: Listing) -> tuple[str, ...]:
    """The expected weight files of which there is nothing at all."""
    return tuple(sorted(expected_shards(listing) - listing.names))


def loaded_shards(listing: Listing) -> list[Shard]:
    """The weight files that an engine reads: those that the index names, of one layout."""
    shards = list(listing.shards)
    if any(not _family(shard["path"]) and shard["path"].endswith(".safetensors") for shard in shards):
        shards = [shard for shard in shards if not _family(shard["path"]) and shard["path"].endswith(".safetensors")]
    named = {shard for index in listing.indices if not index["problem"] for shard in index["shards"]}
    if any(shard["path"] in named for shard in shards):
        shards = [shard for shard in shards if shard["path"] in named]
    return shards


def n_expected_shards(listing: Listing) -> int:
    """How many weight files an engine should find."""
    expected = expected_shards(listing)
    loaded = [shard["path"] for shard in loaded_shards(listing)]
    if expected.intersection(loaded) or not loaded:
        family = _family(loaded[0]) if loaded else ""
        return len({name for name in expected if _family(name) == family})
    return len(loaded)


def shard_problems(listing: Listing) -> Iterator[Problem]:
    """Everything about weight files and indices."""
    for name in missing_shards(listing):
        yield Problem("missing-shard", name, f"{name} is missing", "a file", "nothing")
    suspected = {entry["path"] for entry in listing.files if entry.get("suspicion") or not entry["size"]}
    for shard in listing.shards:
        if shard["path"] not in suspected:  # what stands in its place is said elsewhere
            yield from _extent_problems(shard)
        yield from _stray_problems(listing, shard)
    yield from _split_problems(listing)
    for index in listing.indices:
        yield from _index_problems(listing, index)
    for difference in listing.repeated:
        yield _difference(difference)
    if not listing.shards and not any(name.endswith(_WEIGHTS) for name in listing.names):
        yield Problem("no-weights", listing.path, "no weight files (*.safetensors, *.gguf, *.bin)")


def _family(path: str) -> str:
    return _OTHER_LAYOUT if path.startswith(_OTHER_LAYOUT) else ""


def _extent_problems(shard: Shard) -> Iterator[Problem]:
    path, problem, size = str(shard["path"]), shard["problem"], int(shard["size"])
    if problem:
        yield Problem(problem["kind"], path, problem["detail"])
    elif size < shard["extent"]:
        detail = f"{size} bytes, its header promises {shard['extent']}"
        yield Problem("truncated", path, detail, f"{shard['extent']} bytes", f"{size} bytes")
    elif size > shard["extent"] and not _is_padded(shard):
        detail = f"{size - shard['extent']} bytes after the last tensor"
        yield Problem("trailing-bytes", path, detail, f"{shard['extent']} bytes", f"{size} bytes")


def _is_padded(shard: Shard) -> bool:
    """A GGUF writer may pad the last tensor to the alignment."""
    return str(shard["path"]).endswith(".gguf") and shard["size"] - shard["extent"] < 65_536


def _stray_problems(listing: Listing, shard: Shard) -> Iterator[Problem]:
    path = str(shard["path"])
    named = [index for index in listing.indices if not index["problem"] and _family(index["path"]) == _family(path)]
    is_indexed = path.endswith(".safetensors") and not path.startswith("adapter_model")
    if named and is_indexed and not any(path in index["shards"] for index in named):
        yield Problem("stray-shard", path, "the index names no tensor in it", "no such file", "a file")


def _split_problems(listing: Listing) -> Iterator[Problem]:
    """Whether each part of a GGUF set is the part that its name says."""
    for shard in listing.shards:
        split, numbered = shard.get("split"), _NUMBERED.fullmatch(shard["path"])
        if shard["problem"] or not numbered or numbered["ending"] != "gguf":
            continue
        said = f"part {int(numbered['number'])} of {int(numbered['total'])}"
        inside = f"part {split['number']} of {split['count']}" if split else "no part of a set"
        if said != inside:
            yield Problem("gguf-split", shard["path"], f"its name says {said}, its header {inside}", said, inside)


def _index_problems(listing: Listing, index: Mapping[str, Any]) -> Iterator[Problem]:
    path = str(index["path"])
    if index["problem"]:
        yield Problem("index-broken", path, f"the index can't be used: {index['problem']}")
        return
    for difference in index["differences"]:
        yield _difference(difference)
    named = [shard for shard in listing.shards if shard["path"] in index["shards"]]
    is_whole = len(named) == len(index["shards"]) and not any(shard["problem"] for shard in named)
    held = sum(sum(shard["dtype_bytes"].values()) for shard in named if not shard["problem"])
    if is_whole and index["total_size"] not in {None, held}:
        detail = f"the index says {index['total_size']} bytes of tensors, the headers {held}"
        yield Problem("total-size", path, detail, str(held), str(index["total_size"]))


def _difference(difference: Mapping[str, Any]) -> Problem:
    kind, count, names = str(difference["kind"]), int(difference["count"]), difference["names"]
    detail = f"{plural(count, 'tensor')}, such as {names[0]}"
    other = str(difference.get("other") or "")
    expected, found, more = {
        "tensor-missing": (f"{names[0]} in it", "in no file", "the index says in it, no header does"),
        "tensor-elsewhere": (f"{names[0]} in it", f"in {other}", f"the index says in it, but in {other}"),
        "tensor-twice": (f"{names[0]} only in {other}", "here too", f"in {other} as well"),
        "tensor-unnamed": ("named by the index", "not named", "the index names none of them"),
    }[kind]
    return Problem(kind, str(difference["path"]), f"{detail}: {more}", expected, found)
