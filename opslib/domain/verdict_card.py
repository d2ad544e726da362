"""What an operator is shown of a failed start: the verdict with all that stands around it, the same everywhere."""

from collections import Counter
from collections.abc import Iterator, Sequence

from opslib.domain.diagnosis import Diagnosis, Evidence
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.snapshot import Changed
from opslib.domain.states import State, Value

_LONGEST = 160  # characters of an earlier outcome; its record has all of it
_STATES = {"none": State.OK, "unknown": State.UNKNOWN}


class SeenBefore(Value):
    """An earlier run that ended in the same cause, or cured it."""

    folder: str
    host: str
    unit: str
    seen_at: str
    summary: str
    cured_by: str = ""  # the change after which the unit came up there


class VerdictCard(Value):
    """A verdict, what could not be had for it, what changed since the unit last worked, where it was seen before."""

    diagnosis: Diagnosis
    missing: tuple[str, ...] = ()
    is_compared: bool = False  # whether earlier records were looked at
    compared_with: str = ""  # the record in which the unit last worked; "": nothing to compare with
    changed: tuple[Changed, ...] = ()
    seen_before: tuple[SeenBefore, ...] = ()  # the newest ones
    seen_in_all: str = ""  # how often and when over all records, and what cured it

    @property
    def state(self) -> State:
        """None is ok, unknown is unknown, a cause is critical."""
        return _STATES.get(self.diagnosis.cause, State.CRITICAL)

    @property
    def headline(self) -> str:
        """Cause, confidence where there is a cause, and the sentence; that it is unknown, the state says."""
        cause, is_cause = self.diagnosis.cause, self.state is State.CRITICAL
        if cause == "unknown":
            return self.diagnosis.summary
        return f"{cause}{f' ({self.diagnosis.confidence} confidence)' if is_cause else ''}: {self.diagnosis.summary}"

    @property
    def parts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Titles with their lines, those without lines left out."""
        diagnosis = self.diagnosis
        parts = (
            ("What follows from it", tuple(quoted_line(line) for line in diagnosis.consequences)),
            ("Ruled out", tuple(f"{entry.cause}: {entry.reason}" for entry in diagnosis.ruled_out)),
            ("What changed since it last worked", tuple(self._changes())),
            ("Seen before", (*filter(None, [self.seen_in_all]), *(_seen(entry) for entry in self.seen_before))),
            ("Could not be had", self.missing),
        )
        return tuple((title, lines) for title, lines in parts if lines)

    def _changes(self) -> Iterator[str]:
        if not self.is_compared:
            return
        if not self.compared_with:
            yield "nothing to compare with: no record of this unit has come up"
            return
        yield f"compared with {self.compared_with}"
        yield from (f"{entry.what}: {entry.before} -> {entry.now}" for entry in self.changed)
        if not self.changed:
            yield "nothing that the kit looks at"


def quoted_line(line: Evidence) -> str:
    """A quoted line with its place, process and time.

    >>> quoted_line(Evidence(line=2, text="OSError", process="APIServer"))
    'line 3  APIServer: OSError'
    """
    who = " ".join(part for part in (line.logged_at, line.process) if part)
    return f"line {line.line + 1}  {f'{who}: ' if who else ''}{line.text.strip()}"


def remedy_lines(remedy: Remedy) -> tuple[str, ...]:
    """A way out: what to do, then command, change, cost and check where they are known."""
    told = (("type", remedy.command), ("costs", remedy.cost), ("check", remedy.check))
    change = [f"  {line}" for line in remedy.diff.splitlines()]
    return (remedy.text, *change, *(f"  {name}: {text}" for name, text in told if text))


def seen_words(seen: Sequence[SeenBefore]) -> str:
    """How often a cause was seen, when, where, and what cured it; `seen` are all records with it, newest first.

    >>> one = SeenBefore(folder="f", host="a", unit="u", seen_at="2026-01-02 10:00", summary="", cured_by="--x 1")
    >>> seen_words([one, one.model_copy(update={"host": "b", "cured_by": ""})])
    '2 times on 2 hosts, last 2026-01-02 10:00; cured by --x 1 (1 of 2)'
    """
    if not seen:
        return ""
    n_hosts = len({entry.host for entry in seen})
    times = f"{len(seen)} times" if len(seen) > 1 else "once"
    where = f"on {n_hosts} hosts" if n_hosts > 1 else f"on {seen[0].host}"
    cures = Counter(entry.cured_by for entry in seen if entry.cured_by)
    cured = ", ".join(f"{change} ({n} of {len(seen)})" for change, n in cures.most_common(3))
    return (
        f"{times} {where}, last {seen[0].seen_at}; {f'cured by {cured}' if cured else 'no record says what cured it'}"
    )


def _seen(entry: SeenBefore) -> str:
    summary = f"cured by {entry.cured_by}" if entry.cured_by else entry.summary
    summary = summary if len(summary) <= _LONGEST else f"{summary[: _LONGEST - 1].rstrip()}…"
    return f"{entry.seen_at} on {entry.host}, {entry.unit}: {summary} ({entry.folder})"
