"""Two records against each other on a screen: what was changed, what came of it, and which change may explain what."""

import textwrap
from collections.abc import Iterator, Sequence

from opslib.domain.run_diff import ABSENT, Difference, FigureChange, RunDiff
from opslib.domain.states import State
from opslib.views.records import shortened
from opslib.views.shown import Shown
from opslib.views.tables import table, text_table
from opslib.views.theme import headline, note

_CHANGED = ("changed", "A", "B")
_FIGURES = ("figure", "A", "B", "B/A")
_LONGEST = 32  # characters of a value
_WIDEST = 100
_GIB = 2**30
SAME = "nothing differs but what differs between any two runs"


def diff_panel(diff: RunDiff, *, is_whole: bool = False) -> Shown:
    """What differs, by kind; figures that moved no more than by chance are left out unless `is_whole`."""
    html, text = [note(f"A: {diff.a}"), note(f"B: {diff.b}")], [f"A  {diff.a}", f"B  {diff.b}"]
    for title, columns, rows in _tables(diff, is_whole=is_whole):
        html.append(table(rows, columns, caption=title))
        text += ["", title, *(f"  {line}" for line in text_table(rows, columns).splitlines())]
    for line in _one_sided(diff.verdicts):
        html.append(note(line))
        text += ["", *_wrapped(line, "")]
    reasons = list(_reasons(diff.figures))
    if reasons:
        html += [note("May explain it, by the table of flags and figures:"), *(note(line) for line in reasons)]
        text += ["", "May explain it, by the table of flags and figures"]
        text += [line for reason in reasons for line in _wrapped(reason)]
    unexplained = [figure.figure for figure in diff.figures if figure.is_notable and not figure.may_explain]
    if unexplained:
        line = f"Nothing in the records explains: {', '.join(unexplained)}"
        html.append(note(line))
        text += ["", *_wrapped(line, "")]
    if diff.is_same:
        html.append(headline(State.OK, SAME))
        text += ["", SAME]
    return Shown("".join(html), "\n".join(text))


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDEST, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def _tables(diff: RunDiff, *, is_whole: bool) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
    kinds = (
        ("Parameters", diff.parameters),
        ("Flags of the engine", diff.flags),
        ("Versions", diff.versions),
        ("Verdicts", [entry for entry in diff.verdicts if ABSENT not in (entry.a, entry.b)]),
    )
    for title, entries in kinds:
        if entries:
            yield title, _CHANGED, [_difference(entry) for entry in entries]
    figures = [figure for figure in diff.figures if is_whole or figure.is_notable]
    if figures:
        yield "Figures", _FIGURES, [_figure(figure) for figure in figures]


def _one_sided(verdicts: Sequence[Difference]) -> Iterator[str]:
    """Sections that only one of the records has, as runs of different runbooks do: a line for each."""
    for side, other in (("A", "b"), ("B", "a")):
        names = [entry.what for entry in verdicts if getattr(entry, other) == ABSENT]
        if names:
            yield f"Sections only in {side}: {', '.join(names)}"


def _difference(entry: Difference) -> tuple[str, ...]:
    return entry.what, shortened(entry.a, _LONGEST), shortened(entry.b, _LONGEST)


def _figure(figure: FigureChange) -> tuple[str, ...]:
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    return _name(figure.figure), _value(figure.figure, figure.a), _value(figure.figure, figure.b), ratio


def _name(figure: str) -> str:
    """A size is told in GiB, and its name says so.

    >>> _name("weights_bytes"), _name("ttft_p99_ms@64")
    ('weights, GiB', 'ttft_p99_ms at concurrency 64')
    """
    name, at, concurrency = figure.partition("@")
    name = f"{name.removesuffix('_bytes')}, GiB" if name.endswith("_bytes") else name
    return f"{name} at concurrency {concurrency}" if at else name


def _value(figure: str, value: float | None) -> str:
    if value is None:
        return "-"
    if figure.endswith("_bytes"):
        return f"{value / _GIB:.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def _reasons(figures: Sequence[FigureChange]) -> Iterator[str]:
    """Each change once, with the figures that it may explain."""
    by_reason: dict[str, list[str]] = {}
    for figure in figures:
        for reason in figure.may_explain:
            by_reason.setdefault(reason, []).append(figure.figure)
    for reason, names in by_reason.items():
        yield f"{reason}: {', '.join(names)}"
