"""The knowledge of the diagnosis: which lines decide which cause. All of it is data (signatures.toml)."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import Field

from opslib.domain.diagnosis_lines import Line, Run
from opslib.domain.states import Value

Confidence = Literal["high", "medium", "low"]
_QUIET = frozenset({"INFO", "DEBUG"})
_CODE = re.compile(
    r"\s{4,}(?:(?:raise|return|await|with|yield|assert|from|import|if|for) |[\^~]+$"
    r"|[\w.\[\], ]{1,80} = |[\w.]{1,80}\(|\"|')"
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


@cache
def _by_voice() -> dict[str, tuple[Signature, ...]]:
    voices = ("program", "systemd", "kernel", "other")
    return {v: tuple(s for s in list_signatures() if s.voice in {v, "any"}) for v in voices}


def matches_of(run: Run) -> list[Match]:
    """Every line of the run that a signature recognises, at most one signature per line."""
    text = "\n".join(line.text for line in run.lines)
    possible = {voice: tuple(s for s in found if _fits_run(s, run, text)) for voice, found in _by_voice().items()}
    first_error = _first_error(run)
    found = [_match(run, position, line, possible[line.voice], first_error) for position, line in enumerate(run.lines)]
    return [match for match in found if match]


def _fits_run(signature: Signature, run: Run, text: str) -> bool:
    """Whether what the signature asks of the whole run holds (and its pattern occurs at all)."""
    if signature.needs_neighbour and not run.has_neighbour:
        return False
    if signature.rules_out and _compiled(signature.rules_out).search(text):
        return False
    if signature.needs and not _compiled(signature.needs).search(text):
        return False
    return bool(_compiled(signature.pattern).search(text))


def _first_error(run: Run) -> int:
    """Where the first exception of a program stands, the length of the run where there is none."""
    pattern = words("exceptions")
    found = (i for i, line in enumerate(run.lines) if line.voice == "program" and pattern.search(line.text))
    return next(found, len(run.lines))


def _match(run: Run, position: int, line: Line, signatures: tuple[Signature, ...], first_error: int) -> Match | None:
    if line.voice == "program" and words("noise").search(line.text):
        return None
    for signature in signatures:
        if not _holds(signature, run, position, first_error):
            continue
        if match := _compiled(signature.pattern).search(line.text):
            return Match(
                signature=signature,
                position=position,
                line=line.index,
                tier=signature.tier - (line.voice == "kernel" and signature.tier == 1),
                captured={name: value for name, value in match.groupdict().items() if value},
                is_quoted=bool(words("wrappers").search(line.text)),
            )
    return None


def _holds(signature: Signature, run: Run, position: int, first_error: int) -> bool:
    """Whether level, phase, order and frames fit; the pattern itself is looked at after that."""
    line = run.lines[position]
    is_fit = (
        signature.is_code == bool(line.voice == "program" and _CODE.match(line.text))
        and (signature.level == "any" or not _is_quiet(line, signature))
        and (not signature.phase or line.phase in signature.phase)
        and not (signature.only_first and position > first_error)
        and not (signature.is_fatal and line.phase == "serving" and line.process.startswith("APIServer"))
    )
    if not is_fit or not signature.frames:
        return is_fit
    if not _compiled(signature.pattern).search(line.text):
        return False
    return bool(_compiled(signature.frames).search(run.frames_before(position)))


def _is_quiet(line: Line, signature: Signature) -> bool:
    """Whether the line's own level says that it is no error."""
    return line.voice == "program" and (line.level in _QUIET or (line.level == "WARNING" and not signature.warns))
