"""Kinds of findings about a checkpoint: how severe each is, and what to do."""

from opslib.domain.states import State

_AGAIN = (
    "download it again: hf download REPOSITORY {file}{revision} --local-dir {directory} --force-download; "
    "then verify once more"
)

KINDS: dict[str, tuple[State, str]] = {
    "no-weights": (State.CRITICAL, "check the path; the download may have gone elsewhere"),
    "missing-shard": (State.CRITICAL, _AGAIN.replace(" --force-download", "")),
    "truncated": (State.CRITICAL, _AGAIN),
    "trailing-bytes": (State.CRITICAL, _AGAIN),
    "header-cut": (State.CRITICAL, _AGAIN),
    "header-length": (State.CRITICAL, _AGAIN),
    "header-not-json": (State.CRITICAL, _AGAIN),
    "unknown-dtype": (State.CRITICAL, "the file needs a newer reader, or is damaged; " + _AGAIN),
    "dtype-shape-mismatch": (State.CRITICAL, _AGAIN),
    "overlapping-offsets": (State.CRITICAL, _AGAIN),
    "offset-gap": (State.CRITICAL, _AGAIN),
    "stray-shard": (State.WARNING, "vLLM reads only the files that the index names; a leftover of another revision?"),
    "index-broken": (State.CRITICAL, _AGAIN),
    "tensor-missing": (State.CRITICAL, "index and shard are of different revisions, or one is damaged; " + _AGAIN),
    "tensor-elsewhere": (State.CRITICAL, "index and shards are of different revisions; " + _AGAIN),
    "tensor-twice": (State.CRITICAL, "one of the files is a leftover of another revision: move it away"),
    "tensor-unnamed": (State.WARNING, "index and shard may be of different revisions"),
    "total-size": (State.WARNING, "the index may be of another revision; the headers decide"),
    "companion-missing": (
        State.CRITICAL,
        "download the small files too: hf download REPOSITORY --local-dir {directory}",
    ),
    "not-json": (State.CRITICAL, _AGAIN),
    "zero-bytes": (State.CRITICAL, _AGAIN),
    "lfs-pointer": (State.CRITICAL, "the file is a git-lfs pointer: run `git lfs pull` in {directory}, or " + _AGAIN),
    "html-page": (State.CRITICAL, "a web page was saved in its place (a login or error page?); " + _AGAIN),
    "error-page": (State.CRITICAL, "an error message was saved in its place; " + _AGAIN),
    "dangling-symlink": (State.CRITICAL, "the blob it points to is gone; " + _AGAIN),
    "leftover": (State.WARNING, "is a download still running? If not: rm {directory}/{file}"),
    "unreadable": (State.UNKNOWN, "give the login (and the unit's user) read access: chmod a+r {directory}/{file}"),
    "digest-mismatch": (State.CRITICAL, _AGAIN),
    "no-digest": (State.WARNING, "download with `hf download --local-dir`: it records digests"),
    "mixed-revisions": (State.WARNING, "download all files of one commit: add --revision COMMIT"),
}

# What a critical finding means for a launch, as an id of the failure catalogue; all others are `checkpoint/corrupt`.
_CAUSES = {
    "no-directory": "checkpoint/missing-file",
    "no-weights": "checkpoint/missing-file",
    "missing-shard": "checkpoint/missing-file",
    "companion-missing": "checkpoint/missing-file",
    "dangling-symlink": "checkpoint/missing-file",
    "unknown-dtype": "checkpoint/unsupported-file",
}


def cause_of(kind: str, path: str) -> str:
    """The catalogue's id for a critical finding of this kind about this file.

    >>> cause_of("truncated", "model.safetensors"), cause_of("not-json", "config.json")
    ('checkpoint/corrupt', 'checkpoint/bad-config')
    """
    if kind == "not-json" and path == "config.json":
        return "checkpoint/bad-config"
    return _CAUSES.get(kind, "checkpoint/corrupt")
