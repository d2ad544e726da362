"""What a unit ran with at one moment, and what changed between two: the first question after "why"."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from opslib.domain.states import Value
from opslib.domain.unit_words import group_by_flag

_GIB = 2**30
_MOVED_BYTES = _GIB // 2  # less memory held by others than this is no news
VERSIONS = {  # fields that name a version -> as they are called in a sentence
    "engine_version": "engine",
    "driver_version": "GPU driver",
    "kernel": "kernel",
    "python_version": "Python",
    "model_commit": "model commit",
    "model_digest": "model index (sha256)",
}


class Snapshot(Value):
    """What a start depends on; an empty field could not be found out then. Of the environment the names only."""

    taken_at: datetime
    unit_text: str = ""
    argv: tuple[str, ...] = ()
    environment_names: tuple[str, ...] = ()
    engine_version: str = ""
    driver_version: str = ""
    kernel: str = ""
    python_version: str = ""
    model_commit: str = ""
    model_digest: str = ""
    held_by_others_bytes: Mapping[str, int] = {}  # GPU memory held by processes that aren't the unit's, by GPU index


class Changed(Value):
    """One thing that differs: what, how it was when it worked, and how it is."""

    what: str
    before: str
    now: str


def compare_snapshots(before: Snapshot, now: Snapshot) -> tuple[Changed, ...]:
    """What differs, the flags first; a field that is empty on one side is not compared.

    >>> from datetime import UTC, datetime
    >>> old = Snapshot(taken_at=datetime(2026, 1, 1, tzinfo=UTC), kernel="6.1", argv=("vllm", "serve", "m"))
    >>> new = old.model_copy(update={"argv": ("vllm", "serve", "m", "--enforce-eager")})
    >>> [(changed.what, changed.before, changed.now) for changed in compare_snapshots(old, new)]
    [('--enforce-eager', 'absent', 'set')]
    """
    return (*_flags(before.argv, now.argv), *_environment(before, now), *_fields(before, now), *_held(before, now))


def _flags(before: tuple[str, ...], now: tuple[str, ...]) -> Iterator[Changed]:
    if not before or not now:
        return
    old, new = _by_flag(before), _by_flag(now)
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield Changed(what=name, before=_said(old.get(name)), now=_said(new.get(name)))


def _by_flag(argv: tuple[str, ...]) -> dict[str, str]:
    lines = [line for line in group_by_flag(list(argv)) if line]
    flags = {line[0]: " ".join(line[1:]) for line in lines if line[0].startswith("-")}
    words = [" ".join(line) for line in lines if not line[0].startswith("-")]
    return {"program": " ".join(words), **flags}


def _said(value: str | None) -> str:
    return "absent" if value is None else value or "set"


def _environment(before: Snapshot, now: Snapshot) -> Iterator[Changed]:
    if not before.argv or not now.argv:
        return
    for name in sorted({*before.environment_names} ^ {*now.environment_names}):
        was = name in before.environment_names
        yield Changed(what=f"variable {name}", before="set" if was else "absent", now="absent" if was else "set")


def _fields(before: Snapshot, now: Snapshot) -> Iterator[Changed]:
    for name, words in VERSIONS.items():
        old, new = getattr(before, name), getattr(now, name)
        if old and new and old != new:
            yield Changed(what=words, before=old, now=new)
    settings = _other_lines(before.unit_text) ^ _other_lines(now.unit_text)
    if before.unit_text and now.unit_text and settings:
        gone = sorted(settings & _other_lines(before.unit_text))
        come = sorted(settings - set(gone))
        yield Changed(what="unit file", before="; ".join(gone) or "absent", now="; ".join(come) or "absent")


def _other_lines(text: str) -> set[str]:
    """The unit's settings but for the commands, whose flags are compared one by one."""
    lines = text.replace("\\\n", " ").splitlines()
    return {line.strip() for line in lines if "=" in line and not line.startswith(("Exec", "Environment", "#"))}


def _held(before: Snapshot, now: Snapshot) -> Iterator[Changed]:
    for index in sorted({*before.held_by_others_bytes, *now.held_by_others_bytes}):
        old, new = (side.held_by_others_bytes.get(index, 0) for side in (before, now))
        if abs(new - old) >= _MOVED_BYTES:
            yield Changed(what=f"held by others on GPU {index}", before=_gib(old), now=_gib(new))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
