"""Takes secrets out of text, JSON values and notebooks; digests, pictures and commit ids stay."""

import base64
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from opslib.onhost import secret_names

MIN_SECRET_LENGTH = 8
_BREAK = r"(?:(?:\\r)?\\n|\r?\n)?"
_WRAPPED = re.compile(
    r"[A-Za-z0-9+/_-]{40}(?:(?:\\r)?\\n|\r?\n)[A-Za-z0-9+/=_-]{2}"
)  # a line of base64, and one after it
_SHOWN = 10  # characters of a secret whose beginning alone is found
_REFERENCES = ("env:", "file:", "keyring:", "[redacted")
_NAMED = "[redacted:named]"


class _Pattern(NamedTuple):
    kind: str
    regex: re.Pattern[str]


class _Table(NamedTuple):
    words: frozenset[str]
    endings: tuple[str, ...]
    harmless: frozenset[str]
    patterns: tuple[_Pattern, ...]


@lru_cache(maxsize=1)
def _table() -> _Table:
    table = tomllib.loads(files("opslib.domain").joinpath("data/secrets.toml").read_text("utf-8"))
    patterns = tuple(_Pattern(row["kind"], re.compile(row["regex"])) for row in table["patterns"])
    return _Table(frozenset(table["words"]), tuple(table["endings"]), frozenset(table["harmless"]), patterns)


def says_secret(name: str) -> bool:
    """Whether a name (parameter, environment variable, flag) says that its value is a secret.

    >>> says_secret("HF_TOKEN"), says_secret("--api-key"), says_secret("TOKENIZERS_PARALLELISM")
    (True, True, False)
    """
    return secret_names.says_secret(name, secret_rule())


@lru_cache(maxsize=1)
def secret_rule() -> Mapping[str, Sequence[str]]:
    """Which names say that their value is a secret, as a program on a host takes it."""
    table = _table()
    return {"words": sorted(table.words), "endings": list(table.endings), "harmless": sorted(table.harmless)}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with every known secret, and all that looks like one, replaced by `[redacted:kind]`.

    >>> redact("curl -H 'Authorization: Bearer abcdefgh12345678' :8000, canary42", ["canary42"])
    "curl -H 'Authorization: Bearer [redacted:bearer]' :8000, [redacted:known]"
    """
    text = redact_known(text, secrets)
    for kind, regex in _table().patterns:
        text = regex.sub(partial(_replaced, kind), text)
    return text


def redact_known(text: str, secrets: Iterable[str]) -> str:
    """The text without the known secrets alone: for what was redacted by patterns already."""
    known = _known(tuple(secrets))
    if known is None:
        return text
    text = known.sub("[redacted:known]", text)
    if _WRAPPED.search(text):
        text = _known_in_lines(tuple(secrets)).sub("[redacted:known]", text)
    return text


def named_secrets(text: str) -> tuple[str, ...]:
    """The values that a text itself says are secret: those of `Environment=` in a unit, and of flags as `--api-key`.

    >>> named_secrets('Environment="HF_TOKEN=abcdefgh" PORT=8000')
    ('abcdefgh',)
    """
    found = []
    if "Environment=" in text:
        rows = re.findall(r"(?m)(?<![A-Za-z])Environment=(.{1,8192})$", text)
        found = [value for row in rows for value in file_secrets("\n".join(_assignments(row)))]
    flags = next(pattern.regex for pattern in _table().patterns if pattern.kind == "flag")
    found += [match["secret"] for match in flags.finditer(text) if len(match["secret"]) >= MIN_SECRET_LENGTH]
    return tuple(dict.fromkeys(found))


def file_secrets(text: str) -> tuple[str, ...]:
    """The values of an environment file's variables whose names say secret; paths and short values are left out."""
    pairs = (line.strip().partition("=") for line in text.splitlines())
    plain = ((name.strip(), value.strip().strip("\"'")) for name, _, value in pairs)
    return tuple(value for name, value in plain if says_secret(name) and is_worth_hiding(value))


def is_worth_hiding(value: str) -> bool:
    """Whether a value under a name that says secret is one: not a switch, a number, a path or a reference.

    A shorter one would be found everywhere.
    """
    return len(value) >= MIN_SECRET_LENGTH and not value.startswith(("/", "~", *_REFERENCES))


def _assignments(row: str) -> Iterator[str]:
    """The words of an `Environment=` line; systemd's quotes around a whole assignment are taken off."""
    for quoted, bare in re.findall(
        r"""["']([A-Za-z_]\w{0,200}=[^"']{0,4096})["']|([A-Za-z_]\w{0,200}=\S{0,4096})""", row
    ):
        yield quoted or bare


def redact_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A nested JSON value with its texts redacted; the value of a key that says secret goes whole, unless a reference.

    >>> redact_value({"HF_TOKEN": "abc", "TOKEN": "env:HF_TOKEN", "n": [1, "x"]})
    {'HF_TOKEN': '[redacted:named]', 'TOKEN': 'env:HF_TOKEN', 'n': [1, 'x']}
    """
    return _redact_value(value, tuple(secrets))


def redact_notebook(notebook: Mapping[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """A notebook (as nested dictionaries) with every source, output, attachment and metadata redacted.

    Pictures (base64) are searched for known secrets only: patterns would eat into them.
    """
    return {key: _redact_cell_part(key, value, tuple(secrets)) for key, value in notebook.items()}


def _redact_value(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(str(key), secrets): _redact_named(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_value(item, secrets) for item in value]
    return value


def _redact_named(key: str, value: Any, secrets: tuple[str, ...]) -> Any:
    return _NAMED if _is_named_secret(key, value) else _redact_value(value, secrets)


def _is_named_secret(key: str, value: Any) -> bool:
    return isinstance(value, str) and value != "" and says_secret(key) and not value.startswith(_REFERENCES)


def _redact_cell_part(key: str, value: Any, secrets: tuple[str, ...]) -> Any:
    """Like `_redact_value`, but knows lists of lines and pictures."""
    if key.startswith("image/") and key != "image/svg+xml":
        return _redact_known_only(value, secrets)
    if _is_lines(key) and isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return _redact_again("".join(value), secrets).splitlines(keepends=True)  # a secret may span two lines
    if isinstance(value, str):
        return _NAMED if _is_named_secret(key, value) else _redact_again(value, secrets)
    if isinstance(value, list):
        return [_redact_cell_part("", item, secrets) for item in value]
    if isinstance(value, Mapping):
        return {redact(str(name), secrets): _redact_cell_part(str(name), item, secrets) for name, item in value.items()}
    return _redact_value(value, secrets)


@lru_cache(maxsize=2048)  # a run saves its notebook after each cell, with all that stood there before
def _redact_again(text: str, secrets: tuple[str, ...]) -> str:
    return redact(text, secrets)


def _is_lines(key: str) -> bool:
    """Whether a list of texts under this key is one text in lines (nbformat), and no list of its own."""
    return key in {"source", "text"} or ("/" in key and not key.endswith("json"))


def _redact_known_only(value: Any, secrets: tuple[str, ...]) -> Any:
    text = "".join(value) if isinstance(value, list) else value
    known = _known(secrets)
    return known.sub("[redacted:known]", text) if known is not None and isinstance(text, str) else text


def _replaced(kind: str, match: re.Match[str]) -> str:
    for group in ("secret", "secret2"):
        if match.groupdict().get(group) is not None:
            start, end = match.span(group)
            return f"{match.string[match.start() : start]}[redacted:{kind}]{match.string[end : match.end()]}"
    return f"[redacted:{kind}]"


@lru_cache(maxsize=64)
def _known(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    """One pattern for all written forms of the known secrets, the longest first."""
    forms = {form for secret in secrets if secret for form in _written_forms(secret)}
    if not forms:
        return None
    cut = [_cut_form(secret) for secret in secrets if len(secret) >= 2 * _SHOWN]
    return re.compile("|".join([*(re.escape(form) for form in sorted(forms, key=len, reverse=True)), *cut]))


def _cut_form(secret: str) -> str:
    """The beginning of a secret, as a table shows it that cuts long texts (pandas after 50 characters)."""
    return rf"{re.escape(secret[:_SHOWN])}[^\s<>\"']{{0,{len(secret)}}}?(?:\.\.\.|…)"


@lru_cache(maxsize=64)
def _known_in_lines(secrets: tuple[str, ...]) -> re.Pattern[str]:
    """The same for base64 that is broken into lines (base64(1), MIME), also inside a JSON text."""
    forms = {form for secret in secrets if secret for form in _base64_forms(secret.encode("utf-8", "surrogatepass"))}
    return re.compile("|".join(_BREAK.join(map(re.escape, form)) for form in sorted(forms, key=len, reverse=True)))


def _written_forms(secret: str) -> set[str]:
    """How a secret may be written: plain, in JSON (once and twice), as a Python literal, in URLs, HTML, base64."""
    once = json.dumps(secret)[1:-1]
    forms = {secret, once, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1], repr(secret)[1:-1]}
    for encoded in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
        forms |= {encoded, re.sub("%..", lambda match: match.group().lower(), encoded)}
    forms.add(
        secret.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace('"', "&#34;")
        .replace("'", "&#39;")
    )
    return forms | _base64_forms(secret.encode("utf-8", "surrogatepass"))


def _base64_forms(secret: bytes) -> set[str]:
    """The characters that depend on the secret alone, at each of the three offsets that it may have in the bytes."""
    forms: set[str] = set()
    if len(secret) < 5:  # too few such characters: they would be found in any picture
        return {base64.b64encode(secret).decode()}
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret)
        first = (offset * 8 + 5) // 6
        last = (offset + len(secret)) * 8 // 6
        inner = encoded[first:last].decode()
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms
