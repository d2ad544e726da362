"""What differs between two records, and which change may explain which figure."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from opslib.domain.record import RunRecord
from opslib.domain.run_facts import KeptRun, cause_of, cured_by, figures_of, flags_of, states_of, versions_of
from opslib.domain.states import Value

# What a figure may differ by between two runs of the same thing, by the end of its name; the first that fits counts.
_CHANCE = {"_p99_ms": 0.25, "_p50_ms": 0.1, "_s": 0.1, "_throughput": 0.05, "": 0.005}
ABSENT = "absent"


class Difference(Value):
    """One thing that differs: what, and how it is in both."""

    what: str
    a: str
    b: str


class FigureChange(Value):
    """A figure in both: its values, the ratio of the second to the first, and what may explain it, with why."""

    figure: str
    a: float | None
    b: float | None
    ratio: float | None = None
    is_notable: bool = False
    may_explain: tuple[str, ...] = ()


class RunDiff(Value):
    """Two records against each other: parameters, flags, versions, figures, verdicts."""

    a: str
    b: str
    parameters: tuple[Difference, ...] = ()
    flags: tuple[Difference, ...] = ()
    versions: tuple[Difference, ...] = ()
    figures: tuple[FigureChange, ...] = ()
    verdicts: tuple[Difference, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs but what differs between any two runs."""
        figures = any(figure.is_notable for figure in self.figures)
        return not (self.parameters or self.flags or self.versions or self.verdicts or figures)


def diff_runs(a: KeptRun, b: KeptRun) -> RunDiff:
    """What differs from `a` to `b`; only what both records know counts as a version, an absent flag is a difference."""
    flags = tuple(_differences(flags_of(a), flags_of(b))) if flags_of(a) and flags_of(b) else ()
    versions = tuple(
        entry for entry in _differences(versions_of(a), versions_of(b)) if ABSENT not in (entry.a, entry.b)
    )
    parameters = tuple(_parameters(a.record, b.record, {entry.what for entry in flags}))
    changes = (*flags, *versions, *parameters)
    figures = tuple(_figures(figures_of(a.record), figures_of(b.record), changes))
    verdicts = tuple(_differences(_verdicts(a.record), _verdicts(b.record)))
    return RunDiff(
        a=a.name, b=b.name, parameters=parameters, flags=flags, versions=versions, figures=figures, verdicts=verdicts
    )


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what in dict.fromkeys((*a, *b)):
        if a.get(what) != b.get(what):
            yield Difference(what=what, a=_said(a, what), b=_said(b, what))


def _said(values: Mapping[str, Any], what: str) -> str:
    if what not in values:
        return ABSENT
    return "set" if values[what] == "" else str(values[what])


def _parameters(a: RunRecord, b: RunRecord, changed_flags: set[str]) -> Iterator[Difference]:
    """Parameters that differ; one that is said by a flag that differs as well is told there."""
    for entry in _differences(a.parameters, b.parameters):
        is_told = f"--{entry.what.replace('_', '-')}" in changed_flags or entry.what == "ticket"
        if not is_told and ABSENT not in (entry.a, entry.b):  # one that only one side's version had says nothing
            yield entry


def _verdicts(record: RunRecord) -> dict[str, str]:
    states = {name: state.value for name, state in states_of(record).items()}
    outcome = record.outcome.state.value if record.outcome else record.status
    return {"outcome": outcome, "cause": cause_of(record) or "none", "cured by": cured_by(record) or "-", **states}


def _figures(a: Mapping[str, float], b: Mapping[str, float], changes: tuple[Difference, ...]) -> Iterator[FigureChange]:
    for name in dict.fromkeys((*a, *b)):
        before, after = a.get(name), b.get(name)
        if before is None or after is None:
            yield FigureChange(figure=name, a=before, b=after)
            continue
        ratio = after / before if before else None
        moved = abs(after - before) / max(abs(before), abs(after)) if after != before else 0.0
        is_notable = moved > _chance(name)
        explained = tuple(_explanations(name, changes)) if is_notable else ()
        yield FigureChange(figure=name, a=before, b=after, ratio=ratio, is_notable=is_notable, may_explain=explained)


def _chance(figure: str) -> float:
    name = figure.partition("@")[0]
    return next(share for end, share in _CHANCE.items() if name.endswith(end))


def _explanations(figure: str, changes: tuple[Difference, ...]) -> Iterator[str]:
    """Each change that the table knows to bear on the figure, with why; nothing is guessed."""
    name, _, concurrency = figure.partition("@")
    for change in changes:
        for effect in _effects():
            if effect["what"] != change.what or name not in effect["figures"]:
                continue
            if effect.get("above") and not _is_above(concurrency, change):
                continue
            yield f"{change.what} {change.a} -> {change.b}: {effect['why']}"


def _is_above(concurrency: str, change: Difference) -> bool:
    """Whether the level has more requests at once than the smaller of the two limits; an absent one limits nothing."""
    limits = [int(value) for value in (change.a, change.b) if value.isdecimal()]
    return bool(limits) and concurrency.isdecimal() and int(concurrency) > min(limits)


@cache
def _effects() -> tuple[Mapping[str, Any], ...]:
    table = resources.files("opslib.domain.data").joinpath("flag_figures.toml").read_text("utf-8")
    return tuple(tomllib.loads(table)["effect"])
