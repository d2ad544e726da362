"""The ledger of launches: read from the records of earlier runs, prediction beside what the journal then said."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opslib.domain.engine_figures import EngineFigures
from opslib.domain.memory_ledger import LedgerEntry, actual_figures, predicted_figures
from opslib.domain.record import RunRecord
from opslib.errors import OpslibError
from opslib.records.folder import RunFolder

GIB = 2**30
_LAUNCHES = ("launch", "relaunch")


def read_ledger(runs_dir: Path, host: str) -> tuple[LedgerEntry, ...]:
    """Every launch on `host` whose journal told figures, oldest first; records that can't be read are passed over."""
    folders = sorted(path.parent for path in runs_dir.glob("*/record.json"))
    entries = (entry for folder in folders for entry in _entries(folder, host))
    return tuple(entries)


def _entries(folder: Path, host: str) -> Iterator[LedgerEntry]:
    try:
        record = RunFolder.open(folder).read_record()
    except OpslibError:
        return
    if record is None or record.host != host:
        return
    values = {section.name: section.value for section in record.sections if isinstance(section.value, Mapping)}
    for name in _LAUNCHES:
        entry = _entry(folder.name, record, values.get("plan-memory") or {}, values.get(name) or {})
        if entry is not None:
            yield entry


def _entry(name: str, record: RunRecord, plan: Mapping[str, Any], launch: Mapping[str, Any]) -> LedgerEntry | None:
    try:
        figures = EngineFigures.model_validate(launch.get("engine") or {})
    except ValueError:
        return None
    planned = plan.get("max_num_seqs")
    told = figures.dummy_requests or figures.arguments.get("max_num_seqs")
    sequences = told if isinstance(told, int) else planned if isinstance(planned, int) else None
    budget = next((term["expected_bytes"] / GIB for term in plan.get("terms") or () if term["name"] == "budget"), None)
    ready_s = launch.get("elapsed_s") if launch.get("state") == "ready" else None
    actual = actual_figures(figures, budget_gib=budget, ready_s=ready_s)
    if not set(actual) - {"ready_s"}:
        return None
    predicted = predicted_figures(plan)
    if sequences != planned:  # launched with another flag than planned: only what doesn't depend on it is compared
        predicted = {key: value for key, value in predicted.items() if key in {"weights", "cuda_graphs"}}
    return LedgerEntry(
        record=name,
        host=record.host,
        model=str(record.parameters.get("model") or record.parameters.get("unit") or ""),
        launched_at=str(record.started_at),
        max_num_seqs=sequences,
        predicted=predicted,
        actual=actual,
    )
