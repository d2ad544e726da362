"""What a record says, by name: cause and cure, the flags and versions that ran, the figures that were measured."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from opslib.domain.record import RunRecord
from opslib.domain.snapshot import VERSIONS
from opslib.domain.states import State, Value
from opslib.domain.unit_words import group_by_flag

STARTS = ("relaunch", "launch")  # sections that start a unit, the later one first
_ENGINE = ("weights_bytes", "available_kv_cache_bytes", "kv_cache_tokens", "max_concurrency", "cuda_graphs_bytes")
_LEVEL = ("output_throughput", "request_throughput")
_LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("e2e_latency_ms", "p99"))


class KeptEvent(Value):
    """One line of a record's event file, with its number (from 1)."""

    line: int
    event: Mapping[str, Any]


class KeptRun(Value):
    """A record as it lies in its folder: name, facts, events, and the text files of its evidence by path."""

    name: str
    record: RunRecord
    events: tuple[KeptEvent, ...] = ()
    files: Mapping[str, str] = {}


def section_value(record: RunRecord, name: str) -> Mapping[str, Any]:
    """The value of a section; empty where there is no such section, or its value is no mapping."""
    for section in record.sections:
        if section.name == name and isinstance(section.value, Mapping):
            return section.value
    return {}


def cause_of(record: RunRecord) -> str:
    """The failure's id: the record's own, else that of its verdict; "" for none and for an unknown one."""
    cause = record.cause or str(section_value(record, "investigate").get("diagnosis", {}).get("cause", ""))
    return cause if "/" in cause else ""


def attempts_of(record: RunRecord) -> tuple[Mapping[str, str], ...]:
    """What was changed to cure a cause, in order: cause, change, outcome ("ready", a cause, or "applied")."""
    for name in ("relaunch", "remedy"):
        if attempts := section_value(record, name).get("attempts"):
            return tuple(attempts)
    remedy = section_value(record, "remedy")
    if not remedy.get("flag"):
        return ()
    words = f"{remedy['flag']} {remedy.get('value', '')}".strip()
    ended = "ready" if section_value(record, "relaunch").get("state") == "ready" else "applied"
    return ({"cause": str(remedy.get("cause", "")), "change": words, "outcome": ended},)


def cured_by(record: RunRecord) -> str:
    """The change after which the unit came up in this run; "" where there was none."""
    return next((str(entry["change"]) for entry in reversed(attempts_of(record)) if entry["outcome"] == "ready"), "")


def has_come_up(record: RunRecord) -> bool:
    """Whether a start of this run ended with an engine that answered."""
    return any(
        section.name in STARTS
        and section.state is State.OK
        and isinstance(section.value, Mapping)
        and ("snapshot" in section.value or section.value.get("state") == "ready")
        for section in record.sections
    )


def last_start(record: RunRecord) -> Mapping[str, Any]:
    """What is recorded of the run's last start of the unit; empty where it started none."""
    return next((value for name in STARTS if (value := section_value(record, name)).get("timeline")), {})


def snapshots(run: KeptRun) -> Iterator[Mapping[str, Any]]:
    """What the unit ran with, the last known first: of a start that came up, else of the evidence."""
    for name in STARTS:
        if snapshot := section_value(run.record, name).get("snapshot"):
            yield snapshot
    for path in sorted(run.files):
        if path.endswith("/snapshot.json"):
            with suppress(ValueError, RecursionError):
                snapshot = json.loads(run.files[path])
                if isinstance(snapshot, Mapping):
                    yield snapshot


def flags_of(run: KeptRun) -> dict[str, str]:
    """The engine's flags in this run, the last that are known."""
    for snapshot in snapshots(run):
        lines = [line for line in group_by_flag(list(snapshot.get("argv", ()))) if line]
        if flags := {line[0]: " ".join(line[1:]) for line in lines if line[0].startswith("-")}:
            return flags
    return {
        name: str(value or "") for name, value in section_value(run.record, "relaunch").get("running_flags", {}).items()
    }


def versions_of(run: KeptRun) -> dict[str, str]:
    """Versions of everything that the run met, by what they belong to; what wasn't found out is left out."""
    record = run.record
    found = {"opslib": record.opslib_version}
    for name, words in (("kernel", "kernel"), ("python_version", "Python")):
        found[words] = str(record.answered.get(name, ""))
    for snapshot in snapshots(run):
        for name, words in VERSIONS.items():
            found[words] = str(snapshot.get(name) or found.get(words, ""))
        break
    found["engine"] = str(last_start(record).get("engine", {}).get("version") or found.get("engine", ""))
    found["model commit"] = found.get("model commit") or str(
        section_value(record, "verify-download").get("commit") or ""
    )
    return {words: version for words, version in found.items() if version}


def figures_of(record: RunRecord) -> dict[str, float]:
    """What was measured, by glossary name; those of a load level end in `@<concurrency>`."""
    start = last_start(record)
    found: dict[str, Any] = {"ready_after_s": start.get("elapsed_s") if start.get("state") == "ready" else None}
    found |= {name: start.get("engine", {}).get(name) for name in _ENGINE}
    found["n_restarts"] = start.get("n_restarts")
    for level in section_value(record, "benchmark").get("levels", ()):
        at = f"@{level['concurrency']}"
        found |= {f"{name}{at}": level.get(name) for name in _LEVEL}
        for name, share in _LATENCIES:
            value = (level.get(name) or {}).get(share)
            found[f"{name.removesuffix('_ms')}_{share}_ms{at}"] = value
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def best_throughput(record: RunRecord) -> float | None:
    """Output tokens per second at the best level of the run's benchmark; None where nothing was measured."""
    levels = section_value(record, "benchmark").get("levels", ())
    found = [level.get("output_throughput") for level in levels if isinstance(level, Mapping)]
    return max((float(each) for each in found if isinstance(each, int | float)), default=None)


def states_of(record: RunRecord) -> dict[str, State]:
    """The state of each section, in order."""
    return {section.name: section.state for section in record.sections}
