"""Verify a downloaded checkpoint where it lies."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from opslib.domain.checkpoint import CheckpointReport, judge_checkpoint, parse_listing
from opslib.domain.host import Host
from opslib.errors import CouldNotFindOut

Progress = Callable[[Mapping[str, Any]], None]


def checkpoint_path(host: Host, model: str) -> str:
    """Where a model lies: an absolute path as it is, a name under the host's models_dir."""
    return model if model.startswith("/") else f"{host.settings.models_dir.rstrip('/')}/{model}"


def verify_checkpoint(
    host: Host, path: str, *, level: str = "headers", on_progress: Progress | None = None
) -> CheckpointReport:
    """Whether the checkpoint at `path` is whole; read on the host itself: headers, at level "digests" every byte.

    `on_progress` gets {"files", "n_files", "bytes"} as files are read. A directory that isn't there is a critical
    report; raises CouldNotFindOut where the login may not read it.
    """
    lines: list[str] = []
    with host.stream_program("verify", {"path": checkpoint_path(host, path), "level": level}) as stream:
        for line in stream:
            text = line.decode("utf-8", "replace")
            if on_progress and text.startswith('{"') and (event := json.loads(text)).get("event") == "progress":
                on_progress(event)
            else:
                lines.append(text)
    listing = parse_listing("\n".join(lines))
    if listing.problem == "unreadable":
        hint = f"chmod a+rX {listing.path}"
        raise CouldNotFindOut(f"{listing.path} may not be read by this login", host=host.settings.alias, hint=hint)
    return judge_checkpoint(listing)
