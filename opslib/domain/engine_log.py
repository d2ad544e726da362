"""The one reader of engine logs: lines, phases and figures of vLLM 0.6 to 0.32 and kin."""

import re
import tomllib
from functools import cache
from importlib import resources

from opslib.domain.engine_figures import EngineFigures, read_figures
from opslib.domain.engine_line import LogLine, parse_log_line, strip_colours
from opslib.domain.states import Value

__all__ = [
    "EngineFigures",
    "LogLine",
    "Phase",
    "list_phases",
    "parse_log_line",
    "phase_of",
    "phase_patterns",
    "read_figures",
    "strip_colours",
]


class Phase(Value):
    """How far a start has come; `percent` where a progress bar says so."""

    id: str
    order: int
    title: str
    percent: int | None = None


@cache
def _phases() -> tuple[tuple[Phase, re.Pattern[str] | None, tuple[re.Pattern[str], ...]], ...]:
    table = tomllib.loads(resources.files("opslib.domain.data").joinpath("phases.toml").read_text("utf-8"))["phase"]
    return tuple(
        (
            Phase(id=row["id"], order=order, title=row["title"]),
            re.compile("|".join(f"(?:{pattern})" for pattern in row["patterns"])) if row["patterns"] else None,
            tuple(re.compile(pattern) for pattern in row.get("progress", ())),
        )
        for order, row in enumerate(table)
    )


def list_phases() -> tuple[Phase, ...]:
    """All phases in order, from "starting" to "stopping"."""
    return tuple(phase for phase, _, _ in _phases())


def phase_patterns() -> dict[str, tuple[str, ...]]:
    """The patterns whose lines show a phase, by the phase's id."""
    return {phase.id: (pattern.pattern,) if pattern else () for phase, pattern, _ in _phases()}


def phase_of(text: str) -> Phase | None:
    """The phase that a line (without prefix) shows, or None where it shows none.

    >>> phase_of("Loading safetensors checkpoint shards:  40% Completed | 50/125 [00:30<00:45, 1.6it/s]").percent
    40
    """
    for phase, pattern, progress in _phases():
        if pattern is None or not pattern.search(text):
            continue
        for bar in progress:
            if match := bar.search(text):
                return phase.model_copy(update={"percent": int(match["percent"])})
        return phase
    return None
