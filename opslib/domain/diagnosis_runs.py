"""What became of each start: failed, stopped on request, serving, or still on its way."""

from enum import StrEnum

from opslib.domain.diagnosis_lines import Line, Run
from opslib.domain.diagnosis_signatures import Match, is_handled, matches_of, words
from opslib.domain.states import Value

_COMES_BACK = frozenset({"environment/disk-full", "gpu-hardware/ecc"})  # worth a word where a server got over it


class Ending(StrEnum):
    """How a start stands at the end of what was read."""

    FAILED = "failed"
    STOPPED = "stopped"
    SERVING = "serving"
    STARTING = "starting"


class RunVerdict(Value):
    """One start, judged: how it ended, and the matches that count, the deciding one first."""

    invocation_id: str
    ending: Ending
    matches: tuple[Match, ...] = ()
    survived: tuple[Match, ...] = ()  # of a start that serves: what it got over, and what may come back
    first_line: int
    last_line: int
    phase: str
    exit_words: str = ""
    has_missing: bool = False
    has_served: bool = False  # whatever became of it later

    @property
    def cause(self) -> str | None:
        """The cause that this start alone speaks for."""
        return self.matches[0].signature.cause if self.matches else None


def judge_run(run: Run) -> RunVerdict:
    """How a start ended, and why as far as its own lines say.

    A stop on request before the first sign of failure makes everything after it noise, and so does success after the
    last one: a server that answers again has not crashed.
    """
    matches = matches_of(run)
    signs = {at for at, line in enumerate(run.lines) if _is_failure(line) and not is_handled(run, at)}
    signs |= {match.position for match in matches if not match.signature.warns and _is_sign(run, match)}
    successes = _successes(run)
    stop = _stop_on_request(run, signs, successes)
    failures = [position for position in signs if stop is None or position < stop]
    success = max((position for position in successes if stop is None or position < stop), default=-1)
    if failures and max(failures) > success:
        ending = Ending.FAILED
    elif stop is not None:
        ending = Ending.STOPPED
    else:
        ending = Ending.SERVING if success >= 0 else Ending.STARTING
    counted = [m for m in matches if stop is None or m.position < stop] if ending is Ending.FAILED else []
    return RunVerdict(
        invocation_id=run.invocation_id,
        ending=ending,
        matches=tuple(_ordered(counted, success)),
        survived=tuple(m for m in matches if m.signature.cause in _COMES_BACK) if ending is Ending.SERVING else (),
        first_line=run.lines[0].index,
        last_line=run.lines[-1].index,
        phase=run.lines[-1].phase,
        exit_words=_exit_words(run),
        has_missing=any(line.is_missing for line in run.lines),
        has_served=success >= 0,
    )


def _is_failure(line: Line) -> bool:
    if line.voice == "systemd":
        return bool(words("failed").search(line.text))
    return line.voice == "program" and bool(words("fatal").search(line.text))


def _is_sign(run: Run, match: Match) -> bool:
    """A kernel line alone proves nothing about this unit, unless it names the unit or one of its processes."""
    line = run.lines[match.position]
    if line.voice == "kernel":
        is_ours = bool(run.unit) and run.unit in line.text
        return "kill" in line.text.lower() and (is_ours or bool(words("ours").search(line.text)))
    return line.voice in {"program", "systemd"} and match.tier < 4


def _successes(run: Run) -> set[int]:
    """Where something worked; an answer that is only logged after its server has finished is none."""
    found: set[int] = set()
    is_over = False
    for position, line in enumerate(run.lines):
        if line.voice == "program" and "server process [" in line.text:
            is_over = "Finished server process [" in line.text
        elif not is_over and _is_success(line):
            found.add(position)
    return found


def _is_success(line: Line) -> bool:
    return line.voice == "program" and bool(words("succeeded").search(line.text))


def _stop_on_request(run: Run, signs: set[int], successes: set[int]) -> int | None:
    """Where somebody asked for the end while nothing was broken: no sign of failure since the last success."""
    pattern = words("stopped")
    is_broken = False
    for position, line in enumerate(run.lines):
        if line.voice in {"program", "systemd"} and pattern.search(line.text) and not is_broken:
            return position
        is_broken = (is_broken or position in signs) and position not in successes
    return None


def _ordered(matches: list[Match], success: int) -> list[Match]:
    """The matches that count, the deciding one first.

    What was printed before the last success belongs to something that passed, unless it is a warning that explains.
    """
    later = [match for match in matches if match.position > success or match.signature.warns]
    return sorted(later, key=lambda match: match.rank)


def _exit_words(run: Run) -> str:
    """Systemd's words for the end: "code=exited, status=1/FAILURE; result exit-code"."""
    said = [line.text for line in run.lines if line.voice == "systemd" and words("exits").search(line.text)]
    return "; ".join(text.partition(": ")[2] or text for text in said[-2:])
