"""Earlier benchmarks that a new one may be held against."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_compare import Subject
from opslib.domain.record import RunRecord
from opslib.domain.run_facts import section_value
from opslib.domain.states import State, Value
from opslib.errors import OpslibError, UnknownName
from opslib.records.find import find_record
from opslib.records.folder import RunFolder
from opslib.records.index import list_records

_RUNBOOKS = ("50-benchmark", "90-deploy")
_GOOD = (State.OK, State.WARNING)
_MOST = 50  # newest records of the host that are read


class Baseline(Value):
    """An earlier benchmark: its record, what it measured, its levels."""

    record: str
    subject: Subject
    levels: tuple[BenchmarkLevel, ...]


def find_baseline(runs_dir: Path, subject: Subject, *, besides: str = "") -> Baseline | None:
    """The last good run of the same subject; else the last of the same host, weights and load; None without one.

    Good is a finished run whose benchmark was ok and not worse than the one before it.
    """
    near: Baseline | None = None
    for baseline in _good(runs_dir, subject.host, besides):
        if baseline.subject == subject:
            return baseline
        is_near = (baseline.subject.model_digest, baseline.subject.load) == (subject.model_digest, subject.load)
        near = near or (baseline if is_near and subject.model_digest else None)
    return near


def read_baseline(runs_dir: Path, name: str) -> Baseline:
    """The benchmark in the record of that name (as `opslib runs show` takes it); raises UnknownName without one."""
    path = find_record(runs_dir, name)
    record = RunFolder.open(path).read_record()
    found = _baseline(path.name, record) if record else None
    if found is None:
        raise UnknownName(f"{path.name} holds no benchmark", hint="opslib runs --runbook 50 lists those that do")
    return found


def _good(runs_dir: Path, host: str, besides: str) -> Iterator[Baseline]:
    entries = [
        entry
        for entry in list_records(runs_dir)
        if entry.host == host and entry.runbook in _RUNBOOKS and entry.name != besides and entry.status == "finished"
    ]
    for entry in entries[:_MOST]:
        with suppress(OpslibError):
            record = RunFolder.open(Path(entry.folder)).read_record()
            if record and _is_good(record) and (found := _baseline(entry.name, record)):
                yield found


def _is_good(record: RunRecord) -> bool:
    states = {section.name: section.state for section in record.sections}
    verdict = section_value(record, "compare").get("verdict")
    outcome = record.outcome.state if record.outcome else State.UNKNOWN
    return states.get("benchmark") is State.OK and verdict != "worse" and outcome in _GOOD


def _baseline(name: str, record: RunRecord) -> Baseline | None:
    value: Mapping[str, Any] = section_value(record, "benchmark")
    with suppress(ValueError):  # of an older or newer schema
        levels = tuple(BenchmarkLevel.model_validate(level) for level in value.get("levels", ()))
        subject = Subject.model_validate(section_value(record, "compare").get("subject") or {"host": record.host})
        return Baseline(record=name, subject=subject, levels=levels) if levels else None
    return None
