"""What is wrong with parameters, in sentences that say what was expected and offer the nearest name."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from opslib.domain.redaction import says_secret

# pattern of a text -> how a message words it
_FORMS = {
    r"^[^\x00-\x1f\x7f]+$": "a text on one line, not empty",
    r"^[^\x00\r\n]*$": "a text on one line",
    r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$": "an alias of hosts.toml: letters, digits, . _ : @ -",
    r"^[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,200}$": "a unit name: letters, digits, _ . @ : -",
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": "a variable's name: letters, digits, _",
    r"^\d+\.\d+(\.\d+)?([A-Za-z0-9.+-]*)$": 'a version such as "0.15"',
    r"^[a-z0-9-]+/[a-z0-9-]+$": "a cause such as gpu-memory/sampler-warmup",
    r"^(|-[1-9]\d?|0|[0-9a-f]{32})$": '"-1", "-2", ..., "" or "0" for the current one, or an invocation id',
    r"^\d{1,4}%?$": 'a number of hosts such as "2", or a share such as "25%"',
    r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$": 'an alias of hosts.toml, or ""',
    r"^([A-Za-z0-9_][A-Za-z0-9_.@:-]{0,200})?$": 'a unit name, or ""',
    r"^([A-Za-z0-9#][A-Za-z0-9_.#:/-]{0,63})?$": 'a ticket such as INC-4711, or ""',
    r"^(|\d{1,4}[mhdw]|\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?Z?)?)$": (
        'a moment such as "2026-11-29", "2026-11-29T18:00" (UTC) or "2h", "7d" for how long ago, or ""'
    ),
}
LINE, MAYBE_LINE, ALIAS, UNIT, VARIABLE, VERSION, CAUSE, INVOCATION, WAVE, *_OPTIONAL = _FORMS
MAYBE_ALIAS, MAYBE_UNIT, MAYBE_TICKET, MAYBE_MOMENT = _OPTIONAL


GOOD_MATCH = 0.6  # a worse one is a wild guess: "launch" for "nosuch"


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that offers the nearest known name, or all of them.

    >>> nearest("prot", ["port", "host"]), nearest("x", ["port", "host"])
    ('; did you mean port?', '; known: port, host')
    """
    close = get_close_matches(name, known, n=1, cutoff=GOOD_MATCH)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}" if known else ""


def neither_host_nor_label(word: str, aliases: Iterable[str], labels: Iterable[str], where: str) -> str:
    """The sentence that refuses a word which should choose hosts of the inventory `where`.

    >>> neither_host_nor_label("prd", ["gpu-a"], ["h100", "prod"], "hosts.toml")
    "hosts.toml has neither a host nor a label 'prd'; did you mean prod?"
    """
    return f"{where} has neither a host nor a label {word!r}{nearest(word, [*aliases, *sorted(labels)])}"


# pydantic's error type -> what was expected
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text (in YAML and Python: in quotes)",
    "list_type": "a list, as in [0, 1]",
    "dict_type": "names with values, as in {NAME: value}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_short": "not empty",
    "string_too_long": "at most {max_length} characters",
}


def problems_of(error: ValidationError, runbook: str, known: Sequence[str]) -> Iterator[str]:
    """One sentence for each problem that pydantic found; never the value of something that says secret."""
    for detail in error.errors(include_url=False):
        place = [str(part) for part in detail["loc"]]
        name = _dotted(detail["loc"])
        if detail["type"] == "extra_forbidden":
            yield f"{name}: unknown parameter of {runbook}{nearest(name, known)}"
        elif detail["type"] == "value_error":
            sentence = str(detail["ctx"]["error"])
            yield f"{name}: {sentence}" if name else sentence
        else:
            yield f"{name}: {_expectation(detail)}, not {_shown(place, detail['input'])}"


def _dotted(place: Sequence[int | str]) -> str:
    """A place in a value as it would be written.

    >>> _dotted(("apply_remedies", 0)), _dotted(("environment", "A", "[key]"))
    ('apply_remedies[0]', 'environment.A')
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "[key]"]
    return "".join(parts).removeprefix(".")


def _expectation(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "string_pattern_mismatch":
        return f"expected {_FORMS[context['pattern']]}"
    phrase = _EXPECTED.get(detail["type"])
    return f"expected {phrase.format(**context)}" if phrase else detail["msg"][:1].lower() + detail["msg"][1:]


def _shown(place: Sequence[str], value: object) -> str:
    """The offending value for a message, but for one that may be a secret."""
    if any(says_secret(part) for part in place):
        return "what was given"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
