"""Verify a downloaded checkpoint where it lies."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from opslib.domain.checkpoint import CheckpointReport, judge_checkpoint, parse_listing
from opslib.domain.digests import Expectation, HashingSpeed
from opslib.domain.host import Host
from opslib.errors import CouldNotFindOut, HostUnreachable, UnexpectedAnswer, UnknownName

Progress = Callable[[Mapping[str, Any]], None]
GB = 10**9
RECONNECTS_S = (1.0, 4.0, 15.0)  # waits before each further try, when the link is lost meanwhile


def checkpoint_path(host: Host, model: str) -> str:
    """Where a model lies: an absolute path as it is, a name under the host's models_dir."""
    return model if model.startswith("/") else f"{host.settings.models_dir.rstrip('/')}/{model}"


def verify_checkpoint(
    host: Host,
    path: str,
    *,
    level: str = "extents",
    expect: Expectation | None = None,
    is_receipt_used: bool = True,
    is_everything_hashed: bool = True,
    user: str | None = None,
    on_progress: Progress | None = None,
    reconnects_s: tuple[float, ...] = RECONNECTS_S,
) -> CheckpointReport:
    """Whether the checkpoint at `path` is whole, and as deep as `level` asks, right; read on the host itself.

    `on_progress` gets {"stage", "files", "n_files", "bytes", "total_bytes", "bytes_per_s", "eta_s"} as files are read.
    `is_everything_hashed` False: at level digest, files with nothing to compare with are told, not hashed.
    `user`: whose read access counts (else the login's). When the link is lost the program is begun again after each
    of `reconnects_s`; what was hashed is known by its receipt. A directory that isn't there is a critical report;
    raises CouldNotFindOut where the login may not read it, HostUnreachable with what was verified so far.
    """
    arguments = {
        "path": checkpoint_path(host, path),
        "level": level,
        "state_dir": host.settings.state_dir,
        "no_receipts": not is_receipt_used,
        "only_expected": not is_everything_hashed,
        "user": user,
        "expect": expect.rows() if expect else {},
        "expect_commit": expect.commit if expect else None,
    }
    told = _Told(on_progress)
    for wait_s in (*reconnects_s, None):
        try:
            return _judged(host, _read(host, arguments, told))
        except HostUnreachable as error:
            if wait_s is None or not told.latest:
                raise _with_progress(error, told) from error
            told({"event": "progress", "stage": "reconnect", "files": 0, "n_files": 0, "bytes": 0, "total_bytes": 0})
            time.sleep(wait_s)
            arguments["no_receipts"] = False  # what this very run has hashed counts
    raise AssertionError("unreachable")


def measure_hashing(host: Host, path: str) -> HashingSpeed:
    """How fast the host would hash the files at `path`: measured there, in about a second."""
    result = host.run_program("digest_trial", {"path": checkpoint_path(host, path)})
    try:
        return HashingSpeed.model_validate_json(result.stdout)
    except (ValueError, RecursionError) as error:
        raise UnexpectedAnswer(
            f"the trial of hashers answered {result.text[:80]!r}", host=host.settings.alias
        ) from error


class _Told:
    """Hands progress on, and remembers the last of it."""

    def __init__(self, on_progress: Progress | None) -> None:
        self.on_progress = on_progress
        self.latest: Mapping[str, Any] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event.get("n_files"):
            self.latest = event
        if self.on_progress:
            self.on_progress(event)


def _read(host: Host, arguments: Mapping[str, Any], told: _Told) -> str:
    lines: list[str] = []
    with host.stream_program("verify", arguments) as stream:
        for line in stream:
            text = line.decode("utf-8", "replace")
            if text.startswith('{"') and len(text) < 4096 and (event := _event(text)).get("event") == "progress":
                told(event)
            else:
                lines.append(text)
    return "\n".join(lines)


def _event(text: str) -> Mapping[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _judged(host: Host, text: str) -> CheckpointReport:
    listing = parse_listing(text)
    if listing.problem == "unreadable":
        hint = f"chmod a+rX {listing.path}"
        raise CouldNotFindOut(f"{listing.path} may not be read by this login", host=host.settings.alias, hint=hint)
    if listing.problem and listing.problem.startswith("no such user"):
        raise UnknownName(listing.problem, host=host.settings.alias, hint="name a user that the host knows")
    return judge_checkpoint(listing.model_copy(update={"is_practice": host.settings.is_rehearsal}))


def _with_progress(error: HostUnreachable, told: _Told) -> HostUnreachable:
    """The error, with how far verification had come."""
    if not told.latest:
        return error
    latest = told.latest
    so_far = (
        f"{error.message}; verified so far at {latest['stage']}: {latest['files']} of {latest['n_files']} files, "
        f"{latest['bytes'] / GB:.1f} of {latest['total_bytes'] / GB:.1f} GB"
    )
    hint = "run it again: files that were hashed are known by their receipts"
    return HostUnreachable(so_far, host=error.host, hint=hint)
