"""How a checkpoint came to where it lies, and the shell command that mends one file of it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_CACHE = re.compile(r"(?P<cache>.*)/models--(?P<repository>[^/]+)/snapshots/(?P<commit>[^/]+)$")
_REPOSITORY = '"${REPOSITORY:?set it to ORG/NAME}"'  # the shell stops with this sentence where it isn't set
_GGUF_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf")


def layout_of(path: str, files: Sequence[Mapping[str, Any]], *, has_metadata: bool) -> str:
    """Which tool's layout a directory has: hf-local-dir, hub-cache, modelscope, gguf-split, gguf or plain."""
    names = {str(entry["path"]) for entry in files}
    if has_metadata:
        return "hf-local-dir"
    if _CACHE.match(path):
        return "hub-cache"
    if names & {".msc", ".mv", ".mdl"}:
        return "modelscope"
    if any(name.endswith(".gguf") for name in names) and not any(name.endswith(".safetensors") for name in names):
        return "gguf-split" if any(_GGUF_PART.fullmatch(name) for name in names) else "gguf"
    return "plain"


def repair_command(repair: str, path: str, file: str, *, layout: str, commit: str | None) -> str:
    """The command for a row of the table about one file of the directory `path`; a text where no command helps.

    >>> repair_command("remove", "/m/a b", "x.incomplete", layout="plain", commit=None)
    "rm -- '/m/a b/x.incomplete'"
    >>> repair_command("fetch", "/m", "a.safetensors", layout="plain", commit="abc")
    'hf download "${REPOSITORY:?set it to ORG/NAME}" a.safetensors --revision abc --local-dir /m --force-download'
    """
    if repair.startswith("text:"):
        return repair.removeprefix("text:")
    if repair == "remove":
        return f"rm -- {shlex.quote(f'{path}/{file}')}"
    if repair == "permit":
        return f"chmod a+r -- {shlex.quote(f'{path}/{file}')}"
    return _fetch(path, file if repair == "fetch" else None, layout=layout, commit=commit)


def _fetch(path: str, file: str | None, *, layout: str, commit: str | None) -> str:
    named = [shlex.quote(file)] if file else []
    if file and file.startswith("-"):
        named = ["--include", *named]
    if layout == "modelscope":
        return " ".join(["modelscope download --model", _REPOSITORY, *named, "--local_dir", shlex.quote(path)])
    repository, target = _REPOSITORY, f"--local-dir {shlex.quote(path)}"
    cached = _CACHE.match(path)
    if cached:
        repository = shlex.quote(cached["repository"].replace("--", "/", 1))
        target = f"--cache-dir {shlex.quote(cached['cache'])}"
        commit = cached["commit"]
    revision = ["--revision", shlex.quote(commit)] if commit else []
    return " ".join(["hf download", repository, *named, *revision, target, "--force-download"])
