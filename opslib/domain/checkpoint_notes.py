"""What an operator may want to know about a checkpoint, and nothing is wrong with."""

from collections.abc import Iterator, Mapping
from typing import Any

from opslib.domain.checkpoint_content import is_blank
from opslib.domain.checkpoint_listing import Listing, plural

GB, MIB = 10**9, 2**20
_TEMPLATES = {"chat_template.jinja", "chat_template.json"}
_UNITS = ((GB, "GB"), (10**6, "MB"), (10**3, "kB"))


def shown_size(size_bytes: int) -> str:
    """A size as downloads are told.

    >>> shown_size(215_100_000_000), shown_size(6_775_472), shown_size(480)
    ('215.1 GB', '6.8 MB', '0.5 kB')
    """
    unit, name = next(((unit, name) for unit, name in _UNITS if size_bytes >= unit // 10), _UNITS[-1])
    return f"{size_bytes / unit:.1f} {name}"


def shown_parameters(n_parameters: int) -> str:
    """A number of parameters as models are named.

    >>> shown_parameters(228_700_000_000), shown_parameters(3_385_600)
    ('228.7B', '3.4M')
    """
    return f"{n_parameters / GB:.1f}B" if n_parameters >= GB // 10 else f"{n_parameters / 10**6:.1f}M"


def notes_of(listing: Listing) -> tuple[str, ...]:
    """Optional files that are not there, sparse files, what a sample can find, and how the hashing went."""
    return tuple(_notes(listing))


def _notes(listing: Listing) -> Iterator[str]:
    names = listing.names
    if "config.json" in names and "adapter_config.json" not in names:
        if "generation_config.json" not in names:
            yield "no generation_config.json: the engine's own sampling defaults hold"
        tokenizer = listing.companions.get("tokenizer_config.json", {}).get("content")
        has_template = isinstance(tokenizer, Mapping) and bool(tokenizer.get("chat_template"))
        if not names & _TEMPLATES and not has_template:
            yield "no chat template: /v1/chat/completions needs --chat-template"
    short = [entry for entry in listing.files if entry["allocated"] + 4096 < entry["size"]]
    if short:
        held = sum(int(entry["allocated"]) for entry in short) / GB
        size = sum(int(entry["size"]) for entry in short) / GB
        yield (
            f"{plural(len(short), 'file')} of {size:.1f} GB occupy {held:.1f} GB of disk: sparse, or on a compressing "
            "file system; level sample tells which"
        )
    blank = [scan for scan in listing.scans if any(is_blank(run) for run in scan.get("runs", ()))]
    if listing.is_practice and blank:
        n_blank = plural(len(blank), "file")
        yield f"practice host: the weights of {n_blank} are holes on purpose, so zeros are no finding"
    if listing.plan and listing.level != "full-scan":
        yield sample_note(listing.plan, listing.scanned_bytes, seed=int(listing.plan["seed"]))
    if listing.hasher:
        yield hasher_note(listing.hasher)


def sample_note(plan: Mapping[str, int], scanned_bytes: int, *, seed: int) -> str:
    """The sample's plan, and with which probability it finds what."""
    stride, block = plan["stride_bytes"], plan["sample_bytes"]
    return (
        f"sampled {scanned_bytes / GB:.2f} GB: both ends of each file and {block // 1024} KiB somewhere in each "
        f"{stride // MIB} MiB (files up to {plan['small_bytes'] // MIB} MiB whole; seed {seed}). Zeros over "
        f"{2 * stride // MIB} MiB or up to a file's end are found for certain, 1 MiB of them with "
        f"{detection_probability(MIB, plan):.0%}, one NaN with {block / stride:.1%}, a turned bit only at level digest"
    )


def detection_probability(run_bytes: int, plan: Mapping[str, int]) -> float:
    """With which probability a sample meets a run of zeros of this length within a large file.

    The block lies anywhere in its stride, and is struck by a run that covers a page of it.

    >>> plan = {"stride_bytes": 4 * 2**20, "sample_bytes": 32 * 2**10}
    >>> detection_probability(8 * 2**20, plan), round(detection_probability(2**20, plan), 2)
    (1.0, 0.26)
    """
    stride, block, page = plan["stride_bytes"], plan["sample_bytes"], 4096
    if run_bytes >= 2 * stride:
        return 1.0
    return min(1.0, max(0.0, (run_bytes + block - 2 * page) / stride))


def hasher_note(hasher: Mapping[str, Any]) -> str:
    """Which hasher was taken, how fast each was in the trial, and how fast it went."""
    measured = ", ".join(f"{name} {rate / GB:.2f}" for name, rate in hasher.get("measured", {}).items())
    trial = f" (GB/s per core in a trial: {measured})" if measured else ""
    speed = f", {hasher['bytes_per_s'] / GB:.2f} GB/s" if hasher.get("bytes_per_s") else ""
    known = f"; {plural(hasher['n_receipts'], 'file')} by receipt" if hasher.get("n_receipts") else ""
    return f"SHA-256 by {hasher['name']}, {hasher['n_processes']} at once{trial}{speed}{known}"
