"""The knowledge of the diagnosis: which lines decide which cause. All of it is data (signatures.toml)."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

from pydantic import Field

from opslib.domain.diagnosis_lines import Run
from opslib.domain.states import Value

Confidence = Literal["high", "medium", "low"]
_NO_ERROR = frozenset({"INFO", "DEBUG", "WARNING"})
_ERROR = frozenset({"ERROR", "CRITICAL"})
_FRAME = re.compile(r'\s*File "')
_CODE = re.compile(
    r"\s{4,}(?:(?:raise|return|await|with|yield|assert|from|import|if|for) |[\^~]+$"
    r"|[\w.\[\], ]{1,80} = |[\w.]{1,80}(?:\(|,$)|\"|'|\.{3}<\d|\)$)"
)


class Signature(Value):
    """One kind of line that decides a cause; the fields are explained at the head of signatures.toml."""

    cause: str
    tier: int = Field(ge=0, le=5)
    pattern: str
    voice: Literal["program", "systemd", "kernel", "any"] = "program"
    frames: str = ""
    phase: tuple[str, ...] = ()
    needs: str = ""
    rules_out: str = ""
    needs_neighbour: bool = False
    only_first: bool = False
    is_fatal: bool = False
    is_code: bool = False
    error_only: bool = False
    level: Literal["", "any"] = ""
    warns: bool = False
    confidence: Confidence = "high"
    source: str


class Match(Value):
    """A line that a signature recognised, with the values it captured."""

    signature: Signature
    position: int  # in its run
    line: int  # in the input
    tier: int
    captured: Mapping[str, str] = {}
    is_quoted: bool = False  # a wrapper repeats what another process said

    @property
    def rank(self) -> tuple[int, bool, int]:
        """What decides first: the lower tier, said rather than repeated, earlier."""
        return (self.tier, self.is_quoted, self.position)


@cache
def _table() -> dict[str, list[dict[str, object]]]:
    return tomllib.loads(resources.files("opslib.domain.data").joinpath("signatures.toml").read_text("utf-8"))


@cache
def list_signatures() -> tuple[Signature, ...]:
    """All signatures, the special before the general."""
    return tuple(Signature.model_validate(row) for row in _table()["signature"])


@cache
def words(name: str) -> re.Pattern[str]:
    """A named list of phrases of signatures.toml (wrappers, fatal, stopped, ...) as one pattern."""
    phrases = _table()["phrases"][0][name]
    if not isinstance(phrases, list):
        raise TypeError(name)
    return re.compile("|".join(f"(?:{phrase})" for phrase in phrases))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def matches_of(run: Run) -> list[Match]:
    """Every line of the run that a signature recognises, at most one signature per line."""
    text = "\n".join(line.text for line in run.lines)
    possible = frozenset(n for n, signature in enumerate(list_signatures()) if _fits_run(signature, run, text))
    first_error = _first_error(run)
    found = (_match(run, position, possible, first_error) for position in range(len(run.lines)))
    return [match for match in found if match]


def _fits_run(signature: Signature, run: Run, text: str) -> bool:
    """Whether what the signature asks of the whole run holds."""
    if signature.needs_neighbour and not run.has_neighbour:
        return False
    if signature.rules_out and _compiled(signature.rules_out).search(text):
        return False
    return not signature.needs or bool(_compiled(signature.needs).search(text))


def _first_error(run: Run) -> int:
    """Where the first exception of a program stands, the length of the run where there is none."""
    pattern = words("exceptions")
    found = (i for i, line in enumerate(run.lines) if line.voice == "program" and pattern.search(line.text))
    return next(found, len(run.lines))


def is_handled(run: Run, position: int) -> bool:
    """Whether the line stands in a traceback that was logged and got over."""
    return run.lines[position].voice == "program" and bool(words("handled").search(run.heading_of(position)))


def _match(run: Run, position: int, possible: frozenset[int], first_error: int) -> Match | None:
    line = run.lines[position]
    for number in _recognised(line.text, line.voice, line.level):
        signature = list_signatures()[number]
        if number not in possible or not _holds(signature, run, position, first_error) or is_handled(run, position):
            continue
        match = _compiled(signature.pattern).search(line.text)
        return Match(
            signature=signature,
            position=position,
            line=line.index,
            tier=signature.tier - (line.voice == "kernel" and signature.tier == 1),
            captured={name: value for name, value in match.groupdict().items() if value} if match else {},
            is_quoted=bool(words("wrappers").search(line.text)),
        )
    return None


@lru_cache(maxsize=20_000)
def _recognised(text: str, voice: str, level: str) -> tuple[int, ...]:
    """The numbers of the signatures whose pattern a text shows; what else they ask is looked at later."""
    if voice == "program" and (_FRAME.match(text) or words("noise").search(text)):
        return ()
    is_code = voice == "program" and bool(_CODE.match(text))
    is_error = level in _ERROR or bool(words("errors").search(text))
    speaking = _speaking(voice, level, is_code=is_code, is_error=is_error)
    return tuple(number for number, pattern in speaking if pattern.search(text))


@cache
def _speaking(voice: str, level: str, *, is_code: bool, is_error: bool) -> tuple[tuple[int, re.Pattern[str]], ...]:
    """Number and pattern of the signatures for which a line of this voice and level may speak."""
    return tuple(
        (number, _compiled(signature.pattern))
        for number, signature in enumerate(list_signatures())
        if signature.voice in {voice, "any"}
        and signature.is_code == is_code
        and (is_error or not signature.error_only)
        and (voice != "program" or _is_loud(signature, level))
    )


def _is_loud(signature: Signature, level: str) -> bool:
    """Whether a line of this level may speak for the signature: a WARNING only where it is meant to."""
    return level not in _NO_ERROR or signature.level == "any" or (level == "WARNING" and signature.warns)


def _holds(signature: Signature, run: Run, position: int, first_error: int) -> bool:
    """Whether phase, order and frames are what the signature asks."""
    line = run.lines[position]
    is_fit = (
        (not signature.phase or line.phase in signature.phase)
        and not (signature.only_first and position > first_error)
        and not (signature.is_fatal and line.phase == "serving" and line.process.lower().startswith("apiserver"))
    )
    if not is_fit or not signature.frames:
        return is_fit
    return bool(_compiled(signature.frames).search(run.frames_before(position)))
