"""What a failed start left behind as files of the record, and the card that quotes it."""

import json
import shlex
from datetime import datetime

from opslib.app.run import Run
from opslib.domain.diagnosis import Diagnosis
from opslib.domain.snapshot import compare_snapshots
from opslib.domain.verdict_card import VerdictCard, seen_words
from opslib.records.earlier import last_good, seen_before
from opslib.records.evidence import EvidenceFile
from opslib.records.evidence import keep_evidence as keep
from opslib.workflow.gathering import Asked
from opslib.workflow.investigate import Evidence

_MOST_SEEN = 5  # earlier records that a card names
_NAMES = {  # file by topic of the question
    "journal": "journal.jsonl",
    "kernel messages": "kernel.txt",
    "unit": "unit-properties.json",
    "unit file": "unit.txt",
    "GPU memory": "gpus.json",
    "GPU processes": "gpu-processes.json",
    "port": "port.json",
    "survey": "host.json",
    "running flags": "running-argv.txt",
}


def keep_evidence(run: Run, evidence: Evidence) -> None:
    """Everything gathered about a failed start, in a folder of its own, with a manifest."""
    texts = _texts(evidence)
    files = [_file(asked, texts.get(asked.what, "")) for asked in evidence.asked if asked.what in _NAMES]
    if evidence.snapshot:
        text = _json(evidence.snapshot.model_dump(mode="json"))
        at = evidence.snapshot.taken_at
        files.append(EvidenceFile(name="snapshot.json", asked="what a start depends on", asked_at=at, text=text))
    gaps = [said for said in evidence.missing if said.partition(":")[0] not in {asked.what for asked in evidence.asked}]
    files += [_gap(said, evidence.gathered_at) for said in gaps]
    start = evidence.invocation_id or f"{evidence.unit}-last-day"
    path = keep(run.folder, start, evidence.unit, files)
    run.tell("line", f"evidence: {path.parent.relative_to(run.folder.path)}", section="investigate")


def _texts(evidence: Evidence) -> dict[str, str]:
    """The answers by topic, as text; parsed ones as JSON."""
    kernel = "".join(f"{entry.realtime_at} {entry.message}\n" for entry in evidence.kernel)
    lists = {
        "GPU memory": evidence.gpus,
        "GPU processes": evidence.gpu_processes,
        "port": evidence.listeners,
    }
    texts = {what: _json([value.model_dump(mode="json") for value in values]) for what, values in lists.items()}
    return {
        **texts,
        "journal": evidence.journal_text,
        "kernel messages": kernel,
        "unit": _json(evidence.status.model_dump(mode="json")) if evidence.status else "",
        "unit file": evidence.unit_text,
        "survey": _json(evidence.survey.model_dump(mode="json")) if evidence.survey else "",
        "running flags": shlex.join(evidence.running_argv),
    }


def _file(asked: Asked, text: str) -> EvidenceFile:
    is_empty = asked.problem and text in {"", "[]\n"}
    shown = "" if is_empty else text
    return EvidenceFile(
        name=_NAMES[asked.what], asked=asked.words, asked_at=asked.asked_at, text=shown, problem=asked.problem
    )


def _gap(said: str, at: datetime) -> EvidenceFile:
    what, _, problem = said.partition(": ")
    return EvidenceFile(name=what, asked=what, asked_at=at, problem=problem or said)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def card_for(run: Run, evidence: Evidence, diagnosis: Diagnosis) -> VerdictCard:
    """The verdict with what changed since the unit last worked, and where the cause was seen before."""
    runs_dir, own = run.folder.path.parent, run.folder.path.name
    good = last_good(runs_dir, run.alias, run.parameters.unit, besides=own)
    seen = seen_before(runs_dir, diagnosis.cause, besides=own)
    changed = compare_snapshots(good.snapshot, evidence.snapshot) if good and evidence.snapshot else ()
    return VerdictCard(
        diagnosis=diagnosis,
        missing=evidence.missing,
        is_compared=True,
        compared_with=good.folder if good else "",
        changed=changed,
        seen_before=seen[:_MOST_SEEN],
        seen_in_all=seen_words(seen),
    )
