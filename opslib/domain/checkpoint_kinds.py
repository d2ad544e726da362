"""Kinds of findings about a checkpoint: level, severity, what each does at run time, and what mends it."""

import tomllib
from functools import cache
from importlib.resources import files

from opslib.domain.states import State, Value

# Each level is a superset of the one before but for full-scan, which reads every byte that digest samples.
LEVELS = ("extents", "sample", "full-scan", "digest")


class Kind(Value):
    """One row of the table."""

    level: str
    state: State
    effect: str
    repair: str


@cache
def kinds() -> dict[str, Kind]:
    """The table, by kind."""
    text = files("opslib.domain.data").joinpath("checkpoint_kinds.toml").read_text("utf-8")
    return {name: Kind.model_validate(row) for name, row in tomllib.loads(text).items()}


# What a critical finding means for a launch, as an id of the failure catalogue; all others are `checkpoint/corrupt`.
_CAUSES = {
    "no-directory": "checkpoint/missing-file",
    "no-weights": "checkpoint/missing-file",
    "missing-shard": "checkpoint/missing-file",
    "missing-file": "checkpoint/missing-file",
    "companion-missing": "checkpoint/missing-file",
    "custom-code-missing": "checkpoint/missing-file",
    "dangling-symlink": "checkpoint/missing-file",
    "unknown-dtype": "checkpoint/unsupported-file",
    "gguf-version": "checkpoint/unsupported-file",
}


def cause_of(kind: str, path: str) -> str:
    """The catalogue's id for a critical finding of this kind about this file.

    >>> cause_of("truncated", "model.safetensors"), cause_of("not-json", "config.json")
    ('checkpoint/corrupt', 'checkpoint/bad-config')
    """
    if kind == "not-json" and path == "config.json":
        return "checkpoint/bad-config"
    return _CAUSES.get(kind, "checkpoint/corrupt")
