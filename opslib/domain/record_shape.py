"""What readers of a record take for granted in its sections' values; anything else in them is free."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from opslib.domain.record import RunRecord

Row = dict[str, Any]


class _Diagnosis(BaseModel):
    evidence: list[Row] = []
    consequences: list[Row] = []


class _Investigation(BaseModel):
    diagnosis: _Diagnosis = _Diagnosis()
    missing: list[Any] = []


class _Attempt(BaseModel):
    change: Any
    outcome: Any


class _Crash(BaseModel):
    died_at: datetime | None = None
    seen_at: datetime | None = None


class _Snapshot(BaseModel):
    argv: list[str] = []


class _Start(BaseModel):
    attempts: list[_Attempt] | None = None
    timeline: list[Any] | None = None
    snapshot: _Snapshot | None = None
    engine: Row = {}
    running_flags: Row = {}
    crash: _Crash | None = None


class _Step(BaseModel):
    title: Any


class _Applied(BaseModel):
    steps: list[_Step] = []


class _Change(BaseModel):
    attempts: list[_Attempt] | None = None
    applied: _Applied | None = None
    steps: list[_Step] = []


class _Level(BaseModel):
    concurrency: Any
    ttft_ms: Row | None = None
    tpot_ms: Row | None = None
    e2e_latency_ms: Row | None = None


class _Benchmark(BaseModel):
    levels: list[_Level] = []


_SHAPES: dict[str, type[BaseModel]] = {
    "investigate": _Investigation,
    "launch": _Start,
    "relaunch": _Start,
    "remedy": _Change,
    "install": _Change,
    "rollback": _Change,
    "benchmark": _Benchmark,
}


def misshapen(record: RunRecord) -> str:
    """The first value of a section that can't be what a run wrote there, and why; "" where all can."""
    for section in record.sections:
        shape = _SHAPES.get(section.name)
        if shape is None or not isinstance(section.value, dict):
            continue
        try:
            shape.model_validate(section.value)
        except ValidationError as error:
            return f"section {section.name}: {first_fault(error)}"
    return ""


def first_fault(error: ValidationError) -> str:
    """Where and what the first of a value's faults is, in one line without Pydantic's own words around it."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    words = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {words}" if where else words
