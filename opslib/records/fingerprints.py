"""Fingerprints of models beside the records: `runs/fingerprints/<model>-<weights>-<dtype>-<engine>.json`."""

import json
from contextlib import suppress
from pathlib import Path

from opslib.domain.canary import Fingerprint
from opslib.errors import CouldNotFindOut
from opslib.records.folder import atomic_write, safe_name

FOLDER = "fingerprints"
_DIGITS = 12  # of the weights' digest


def fingerprint_path(runs_dir: Path, fingerprint: Fingerprint) -> Path:
    """Where a fingerprint of these weights, this dtype and this engine is kept."""
    digest, dtype, engine = fingerprint.key
    parts = (fingerprint.model, digest[:_DIGITS], dtype, engine)
    return runs_dir / FOLDER / ("-".join(safe_name(part) or "unknown" for part in parts) + ".json")


def kept_fingerprints(runs_dir: Path, model_digest: str) -> tuple[Fingerprint, ...]:
    """All fingerprints of these weights, oldest first; a file that is none is passed over."""
    found = []
    for path in (runs_dir / FOLDER).glob(f"*-{model_digest[:_DIGITS]}-*.json"):
        with suppress(OSError, ValueError):
            found.append(Fingerprint.model_validate_json(path.read_bytes()))
    return tuple(sorted((each for each in found if each.model_digest == model_digest), key=lambda each: each.taken_at))


def keep_fingerprint(runs_dir: Path, fingerprint: Fingerprint) -> Path:
    """Keep it where none is kept yet: the first good one stays. Raises CouldNotFindOut where it can't be written."""
    path = fingerprint_path(runs_dir, fingerprint)
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(fingerprint.model_dump(mode="json"), indent=1, ensure_ascii=False)
        atomic_write(path, text.encode() + b"\n")
    except OSError as error:
        raise CouldNotFindOut(f"{path} could not be written: {error.strerror}") from error
    return path
