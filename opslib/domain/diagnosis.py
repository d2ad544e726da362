"""Name the first cause of a failed start, with the lines that decide it; "unknown" rather than a guess."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from opslib.domain.diagnosis_catalogue import Remedy, cause_entry
from opslib.domain.diagnosis_lines import Line, Run, read_lines, split_runs
from opslib.domain.diagnosis_runs import Ending, RunVerdict, judge_run
from opslib.domain.diagnosis_signatures import Confidence, Match, words
from opslib.domain.diagnosis_words import figures_in_words
from opslib.domain.engine_figures import read_figures
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import Value

_MAX_QUOTED = 6
_MAX_TEXT = 600
_RESULTS = {
    "oom-kill": "host-memory/oom-killed",
    "timeout": "systemd/start-timeout",
    "start-limit-hit": "systemd/start-limit",
    "core-dump": "process/segfault",
}
_LOWER: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


class Evidence(Value):
    """A quoted line: its 0-based place in the input, who said it, and when."""

    line: int
    text: str
    process: str = ""
    logged_at: str = ""


class RuledOut(Value):
    """A cause that was considered, and why it is not the one."""

    cause: str
    reason: str
    line: int | None = None


class Invocation(Value):
    """One start in the input: how it ended and what it alone speaks for."""

    invocation_id: str
    ending: str
    cause: str | None
    phase: str
    exit: str
    first_line: int
    last_line: int


class Diagnosis(Value):
    """A verdict: `cause` is an id of the catalogue, "none" or "unknown"; the first evidence line decides."""

    cause: str
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Evidence, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    invocations: tuple[Invocation, ...] = ()
    captured: Mapping[str, str] = {}

    @property
    def exit_code(self) -> int:
        """What `opslib diagnose` exits with: none 0, a cause 2, unknown 3."""
        return {"none": 0, "unknown": 3}.get(self.cause, 2)


def diagnose(entries: Iterable[JournalEntry], *, status: UnitStatus | None = None) -> Diagnosis:
    """Why the unit failed, by its journal (and by `systemctl show`, where that is known).

    Of several starts the failed one with the hardest facts decides, of equals the latest; what failed before a start
    that served is another story, unless nothing has failed since. Never raises for any input.
    """
    runs = split_runs(read_lines(entries))
    verdicts = [judge_run(run) for run in runs]
    failed = [(run, verdict) for run, verdict in zip(runs, verdicts, strict=True) if verdict.ending is Ending.FAILED]
    known = [pair for pair in _since_served(failed, verdicts) if pair[1].matches]
    invocations = tuple(_invocation(verdict) for verdict in verdicts)
    if known:
        run, verdict = min(known, key=lambda pair: (pair[1].matches[0].tier, -pair[1].first_line))
        return _verdict(run, verdict, verdicts, invocations)
    if told := _by_result(status, invocations):
        return told
    if failed:
        return _unknown(*failed[-1], invocations)
    return _not_failed(runs, verdicts, status, invocations)


def _since_served(failed: list[tuple[Run, RunVerdict]], verdicts: list[RunVerdict]) -> list[tuple[Run, RunVerdict]]:
    """The failed starts from the last one that served on; all of them where none has failed since."""
    served_at = max((verdict.first_line for verdict in verdicts if verdict.has_served), default=0)
    return [pair for pair in failed if pair[1].first_line >= served_at] or failed


def _by_result(status: UnitStatus | None, invocations: tuple[Invocation, ...]) -> Diagnosis | None:
    """What systemd's result alone says where no line does."""
    cause = _RESULTS.get(status.result) if status else None
    if status is None or cause is None:
        return None
    entry = cause_entry(cause)
    summary = f"No line says why; systemd's result is {status.result}. {entry.meaning}"
    remedies = entry.remedies_for({})
    return Diagnosis(cause=cause, confidence="medium", summary=summary, remedies=remedies, invocations=invocations)


def _invocation(verdict: RunVerdict) -> Invocation:
    return Invocation(
        invocation_id=verdict.invocation_id,
        ending=verdict.ending.value,
        cause=verdict.cause,
        phase=verdict.phase,
        exit=verdict.exit_words,
        first_line=verdict.first_line,
        last_line=verdict.last_line,
    )


def _verdict(
    run: Run, verdict: RunVerdict, verdicts: list[RunVerdict], invocations: tuple[Invocation, ...]
) -> Diagnosis:
    decisive = verdict.matches[0]
    cause = decisive.signature.cause
    entry = cause_entry(cause)
    same = [m for m in verdict.matches if m.signature.cause == cause and m.is_quoted <= decisive.is_quoted]
    figures = read_figures(line.text for line in run.lines if line.voice == "program")
    said = (entry.meaning, figures_in_words(cause, figures), _repeated(cause, verdicts))
    captured = {name: value for match in reversed(same) for name, value in match.captured.items()}
    return Diagnosis(
        cause=cause,
        confidence=_confidence(decisive, verdict),
        summary=" ".join(words for words in said if words),
        evidence=_distinct([_quote(run.lines[match.position]) for match in same]),
        consequences=_consequences(run, {match.position for match in same}),
        ruled_out=_ruled_out(verdict, decisive, verdicts),
        remedies=entry.remedies_for(captured),
        invocations=invocations,
        captured=captured,
    )


def _distinct(quotes: list[Evidence]) -> tuple[Evidence, ...]:
    """Each sentence once, the earliest: ranks say the same with other numbers."""
    first = {re.sub(r"\d+", "#", quote.text): quote for quote in reversed(quotes)}
    return tuple(sorted(first.values(), key=quotes.index))[:_MAX_QUOTED]


def _confidence(decisive: Match, verdict: RunVerdict) -> Confidence:
    """The signature's own, one step lower for a wrapper's quotation, or a symptom beside lines that are missing."""
    confidence = decisive.signature.confidence
    if decisive.is_quoted or (verdict.has_missing and decisive.tier >= 3):
        confidence = _LOWER[confidence]
    return confidence


def _repeated(cause: str, verdicts: list[RunVerdict]) -> str:
    """How often the same cause ended a start, and whether others did as well."""
    counts = Counter(verdict.cause or "unknown" for verdict in verdicts if verdict.ending is Ending.FAILED)
    others = [f"{other} ({n})" for other, n in counts.items() if other != cause]
    same = f"The same in {counts[cause]} starts." if counts[cause] > 1 else ""
    return " ".join(words for words in (same, f"Other failed starts: {', '.join(others)}." if others else "") if words)


def _quote(line: Line) -> Evidence:
    return Evidence(line=line.index, text=line.text[:_MAX_TEXT], process=line.process, logged_at=line.logged_at)


def _consequences(run: Run, quoted: set[int]) -> tuple[Evidence, ...]:
    """The wrappers and systemd's lines about the end: true, and not the cause."""
    found = []
    for position, line in enumerate(run.lines):
        is_wrapper = line.voice == "program" and words("wrappers").search(line.text)
        is_end = line.voice == "systemd" and words("failed").search(line.text)
        if (is_wrapper or is_end) and position not in quoted:
            found.append(_quote(line))
    return tuple(found[:_MAX_QUOTED])


def _ruled_out(verdict: RunVerdict, decisive: Match, verdicts: list[RunVerdict]) -> tuple[RuledOut, ...]:
    """Other causes that some line spoke for, once each, with the reason why they yield."""
    found: dict[str, RuledOut] = {}
    for match in (match for other in (verdict, *verdicts) for match in other.matches):
        cause = match.signature.cause
        if cause == decisive.signature.cause or cause in found:
            continue
        if match.tier > decisive.tier:
            reason = "a symptom; a line that says more stands in the same story"
        elif match.is_quoted:
            reason = "a wrapper repeats it"
        else:
            reason = "printed later, or in another start"
        found[cause] = RuledOut(cause=cause, reason=reason, line=match.line)
    return tuple(found.values())


def _unknown(run: Run, verdict: RunVerdict, invocations: tuple[Invocation, ...]) -> Diagnosis:
    """The start failed and no line says why: the most telling lines, and where the rest must be."""
    telling = [line for line in run.lines if line.is_missing or _is_telling(line)]
    where = "the kernel log of that time, core dumps, the lines before the first one here"
    if verdict.has_missing:
        where = "the messages that are null here: read the journal again with --all"
    exits = f" ({verdict.exit_words})" if verdict.exit_words else ""
    return Diagnosis(
        cause="unknown",
        confidence="low",
        summary=f"The start failed{exits} and no line here says why. Look into {where}.",
        evidence=tuple(_quote(line) for line in telling[:_MAX_QUOTED]),
        consequences=_consequences(run, set()),
        invocations=invocations,
    )


def _is_telling(line: Line) -> bool:
    if line.voice == "systemd":
        return bool(words("failed").search(line.text))
    return bool(words("exceptions").search(line.text) or words("fatal").search(line.text))


def _not_failed(
    runs: list[Run], verdicts: list[RunVerdict], status: UnitStatus | None, invocations: tuple[Invocation, ...]
) -> Diagnosis:
    endings = [verdict.ending for verdict in verdicts]
    is_broken = status is not None and (status.active_state == "failed" or status.result not in {"", "success"})
    if Ending.STOPPED in endings or Ending.SERVING in endings:
        if not is_broken:
            is_stopped = endings[-1] is Ending.STOPPED
            summary = "Nothing failed: it was stopped on request." if is_stopped else "Nothing failed: it serves."
            warning, quoted = _survived(runs[-1], verdicts[-1])
            said = f"{summary} {warning}".rstrip()
            return Diagnosis(cause="none", confidence="high", summary=said, evidence=quoted, invocations=invocations)
    elif not runs:
        return Diagnosis(cause="unknown", confidence="low", summary="There are no lines to read.")
    is_bare = verdicts[-1].phase == "none"  # later in a start an exception may be one that was got over
    telling = [line for line in runs[-1].lines if is_bare and line.voice != "systemd" and _is_telling(line)]
    shown = "show neither a failure nor a server that answers"
    if telling:
        shown = "tell of a failure, not of its cause: read the lines before them as well"
    said = f"systemd says {status.active_state}, result {status.result}. " if status else ""
    return Diagnosis(
        cause="unknown",
        confidence="low",
        summary=f"{said}These lines {shown}; they end in phase {verdicts[-1].phase}.",
        evidence=tuple(_quote(line) for line in (telling or runs[-1].lines)[-3:]),
        invocations=invocations,
    )


def _survived(run: Run, verdict: RunVerdict) -> tuple[str, tuple[Evidence, ...]]:
    """A warning about what a server got over this time, with its lines; "" for nothing."""
    causes = dict.fromkeys(match.signature.cause for match in verdict.survived)
    if not causes:
        return "", ()
    quoted = _distinct([_quote(run.lines[match.position]) for match in verdict.survived])
    return f"Warning: lines speak of {', '.join(causes)}, which it got over this time.", quoted
