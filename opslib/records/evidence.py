"""Evidence of one failed start as a folder of the record, with a manifest: what was asked, what could not be had."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from opslib.domain.redaction import redact, redact_known
from opslib.domain.states import Value
from opslib.records.folder import RunFolder, atomic_write

MANIFEST = "manifest.json"


class EvidenceFile(Value):
    """One thing that was asked for: its file and content, the question, when, and why there is none."""

    name: str
    asked: str
    asked_at: datetime
    text: str = ""
    problem: str = ""


def keep_evidence(folder: RunFolder, start: str, unit: str, files: Sequence[EvidenceFile]) -> Path:
    """Writes the files redacted into `evidence/<start>/` and returns the manifest's path.

    The digest of each is that of the bytes as they lie there, so that a later change shows.
    """
    folder.learn_secrets(*(file.text for file in files))  # before the first is written
    rows = [_keep(folder, start, file) for file in files]
    manifest = {"unit": unit, "invocation_id": start, "files": rows}
    return folder.add_evidence(MANIFEST, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode(), start)


def redact_again(folder: RunFolder) -> list[Path]:
    """Take out of every file what has become known as secret since it was written; names those that changed.

    Manifests of evidence get the digests of their files as they are now.
    """
    changed = []
    for path in sorted(path for path in folder.path.rglob("*") if path.is_file() and not path.is_symlink()):
        with suppress(UnicodeDecodeError):
            text = path.read_bytes().decode("utf-8")
            redacted = redact_known(text, folder.secrets)
            if redacted != text:
                atomic_write(path, redacted.encode())
                changed.append(path)
    for manifest in {path.parent / MANIFEST for path in changed}:
        if manifest.is_file():
            _renew(manifest)
    return changed


def _renew(manifest: Path) -> None:
    """Write the digests of the files as they lie there."""
    content = json.loads(manifest.read_bytes())
    content["files"] = [
        {**row, **_digest(manifest.parent / row["file"])} if row.get("file") else row for row in content["files"]
    ]
    atomic_write(manifest, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _digest(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _keep(folder: RunFolder, start: str, file: EvidenceFile) -> dict[str, object]:
    row: dict[str, object] = {"asked": redact(file.asked, folder.secrets), "asked_at": file.asked_at.isoformat()}
    if not file.text:
        return {"file": None, "name": file.name, **row, "problem": file.problem or "the answer is empty"}
    path = folder.add_evidence(file.name, file.text.encode("utf-8", "replace"), start)
    row |= _digest(path)
    return {"file": path.name, "name": file.name, **row, **({"problem": file.problem} if file.problem else {})}
