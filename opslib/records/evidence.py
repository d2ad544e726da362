"""Evidence of one failed start as a folder of the record, with a manifest: what was asked, what could not be had."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from opslib.domain.redaction import redact
from opslib.domain.states import Value
from opslib.records.folder import RunFolder

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
    rows = [_keep(folder, start, file) for file in files]
    manifest = {"unit": unit, "invocation_id": start, "files": rows}
    return folder.add_evidence(MANIFEST, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode(), start)


def _keep(folder: RunFolder, start: str, file: EvidenceFile) -> dict[str, object]:
    row: dict[str, object] = {"asked": redact(file.asked, folder.secrets), "asked_at": file.asked_at.isoformat()}
    if not file.text:
        return {"file": None, "name": file.name, **row, "problem": file.problem or "the answer is empty"}
    path = folder.add_evidence(file.name, file.text.encode("utf-8", "replace"), start)
    content = path.read_bytes()
    row |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {"file": path.name, "name": file.name, **row, **({"problem": file.problem} if file.problem else {})}
