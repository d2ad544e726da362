"""The scenarios of the rehearsal host as rows: what happens, and how `90-deploy` comes out."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from opslib.rehearsal.scenarios import list_scenarios, load_scenario

COLUMNS = ("scenario", "what happens", "outcome", "exit", "cause", "an operator reads")


class ScenarioRow(NamedTuple):
    """One scenario for reading."""

    name: str
    sentence: str
    state: str
    exit_code: int
    cause: str
    told: str


def scenario_rows() -> Iterator[ScenarioRow]:
    """All scenarios, the good ends first."""
    loaded = [load_scenario(name) for name in list_scenarios()]
    for scenario in sorted(loaded, key=lambda each: (each.expected.exit_code, each.name)):
        expected = scenario.expected
        told = readable(expected.sentence)
        yield ScenarioRow(scenario.name, scenario.sentence, expected.state, expected.exit_code, expected.cause, told)


def readable(pattern: str) -> str:
    r"""A pattern as a sentence: what may be anything becomes an ellipsis, figures an N.

    >>> readable(r"held by metrics-proxy \(pid \d+\).*40\.0 GiB")
    'held by metrics-proxy (pid N)…40.0 GiB'
    """
    text = pattern.replace(r"\d+", "N").replace(r"\d", "N")
    return re.sub(r"\\(.)", r"\1", text.replace(".*", "…"))


def scenario_table() -> str:
    """The rows as a Markdown table, as docs/scenarios.md has it."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for row in scenario_rows():
        cause = f"`{row.cause}`" if row.cause != "none" else "-"
        lines.append(_line([f"`{row.name}`", row.sentence, row.state, str(row.exit_code), cause, row.told]))
    return "\n".join(lines)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
