"""The flags of `vllm serve`, read as vLLM reads them: names, aliases, types, defaults and where a value comes from."""

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from pydantic import JsonValue

from opslib.domain.engine_defaults import batch_defaults, default_gpu_memory_utilization
from opslib.domain.serve_flags import FlagValue, ServeFlags
from opslib.domain.states import CheckResult, State, Value

__all__ = ["FlagName", "FlagSpec", "FlagValue", "ServeFlags", "parse_serve_arguments"]

# vllm/utils/argparse_utils.py human_readable_int: "1k" is 1000, "1K" is 1024
_MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
UNKNOWN_FLAG = "engine/unknown-flag"  # the finding about a flag that the kit's table doesn't have


class FlagSpec(Value):
    """One flag as vLLM's parser knows it; `kind` is bool, int, count (int with suffix), float, str or json."""

    kind: str
    many: bool = False
    optional: bool = False
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    is_old: bool = False  # gone from vLLM 0.32


class FlagName(Value):
    """A word of a command line taken apart: the flag's canonical name, its inline value, whether it is `--no-…`.

    `member` is what follows a dot: `--compilation-config.cudagraph_mode` sets one value of a JSON object.
    """

    name: str
    inline: str | None = None
    is_negated: bool = False
    member: str = ""


@cache
def flag_table() -> dict[str, FlagSpec]:
    """All flags of vLLM 0.32's parser, and those that older versions had, by canonical name."""
    text = files("opslib.domain.data").joinpath("vllm_flags.json").read_text("utf-8")
    return {name: FlagSpec.model_validate(spec) for name, spec in json.loads(text).items()}


@cache
def _names() -> dict[str, str]:
    names = {name: name for name in flag_table()}
    names |= {alias: name for name, spec in flag_table().items() for alias in spec.aliases}
    return names


def is_flag(word: str) -> bool:
    """Whether a word of a command line names a flag; "-1" is a value.

    >>> is_flag("-tp"), is_flag("-1"), is_flag("8000")
    (True, False, False)
    """
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and word != "--"


def read_flag_name(word: str) -> FlagName | None:
    """The flag that `word` names, as vLLM resolves it (underscores, `=value`, aliases, unique prefixes), or None.

    >>> read_flag_name("--max_num_seqs=256")
    FlagName(name='--max-num-seqs', inline='256', is_negated=False, member='')
    """
    head, equals, inline = word.partition("=")
    inline_value = inline if equals else None
    stem, _, member = head.partition(".")
    if stem.startswith("-O") and stem not in _names():  # -O3
        return FlagName(name="--compilation-config", inline=stem[2:] or inline_value, member=member)
    if stem.startswith("--"):
        stem = stem.replace("_", "-")
    for candidate, is_negated in ((stem, False), ("--" + stem.removeprefix("--no-"), stem.startswith("--no-"))):
        name = _names().get(candidate) or _unique_prefix(candidate)
        if name and not (is_negated and flag_table()[name].kind != "bool"):
            return FlagName(name=name, inline=inline_value, is_negated=is_negated, member=member)
    return None


def _unique_prefix(stem: str) -> str | None:
    if not stem.startswith("--") or len(stem) < 4:
        return None
    found = {name for known, name in _names().items() if known.startswith(stem)}
    return found.pop() if len(found) == 1 else None


def nearest_flag(word: str) -> str | None:
    """The known flag that looks most like an unknown one.

    >>> nearest_flag("--max-num-seq-s")
    '--max-num-seqs'
    """
    stem = word.partition("=")[0].replace("_", "-")
    return next(iter(difflib.get_close_matches(stem, _names(), n=1, cutoff=0.6)), None)


def parse_serve_arguments(
    argv: Sequence[str],
    *,
    engine_version: str = "",
    gpu_total_bytes: int | None = None,
    gpu_name: str = "",
    environment: Mapping[str, str] | None = None,
    origin: str = "unit",
) -> ServeFlags:
    """Reads the words after `vllm serve` (the model may be among them) and fills in the defaults that decide memory.

    Unknown flags and values that can't be read become findings with state critical: vLLM would exit with status 2.
    """
    model: str | None = None
    given: dict[str, FlagValue] = {}
    findings: list[CheckResult] = []
    for word, values in _grouped(argv):
        flag = read_flag_name(word) if is_flag(word) else None
        if not is_flag(word):
            model = word
        elif flag is None:
            findings.append(_unknown(word))
        else:
            try:
                given[flag.name] = FlagValue(value=_read_value(flag, values, given), origin=origin)
            except ValueError as error:
                findings.append(CheckResult(name="engine/bad-value", state=State.CRITICAL, summary=f"{word}: {error}"))
    if isinstance(named := given.get("--model"), FlagValue) and isinstance(named.value, str):
        model = model or named.value
    flags = _with_defaults(given, engine_version, gpu_total_bytes, gpu_name)
    return ServeFlags(model=model, flags=flags, findings=tuple(findings), environment=environment or {})


def _grouped(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words that belong to it; a word that belongs to none stands alone (the model)."""
    words = list(argv)
    while words:
        word = words.pop(0)
        flag = read_flag_name(word) if is_flag(word) else None
        values: list[str] = []
        if flag and flag.inline is None:
            spec = flag_table()[flag.name]
            limit = 0 if spec.kind == "bool" else len(words) if spec.many else 1
            while words and len(values) < limit and not is_flag(words[0]):
                values.append(words.pop(0))
        elif is_flag(word) and flag is None and "=" not in word and words and not is_flag(words[0]):
            values.append(words.pop(0))
        yield word, values


def _read_value(flag: FlagName, words: Sequence[str], given: Mapping[str, FlagValue]) -> JsonValue:
    spec = flag_table()[flag.name]
    if spec.kind == "bool":
        return not flag.is_negated
    texts = [flag.inline] if flag.inline is not None else list(words)
    if not texts:
        if spec.optional:
            return None
        raise ValueError("expected one argument")
    if spec.many:
        return [_converted(text, spec) for text in texts]
    value = _converted(texts[0], spec)
    for key in reversed(flag.member.split(".") if flag.member else ()):
        value = {key: value}
    before = given.get(flag.name)
    if before and isinstance(before.value, dict) and isinstance(value, dict):
        return merged(before.value, value)
    return value


def merged(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Two JSON objects as one: the other's values go before, objects within are joined too.

    >>> merged({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}})
    {'a': {'b': 1, 'd': 3}, 'c': 2}
    """
    joined = dict(one)
    for key, value in other.items():
        before = joined.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        joined[key] = merged(before, value) if both else value  # type: ignore[arg-type]
    return joined


def _converted(text: str, spec: FlagSpec) -> JsonValue:
    if spec.choices and text not in spec.choices:
        raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(spec.choices)})")
    if spec.kind == "int":
        return int(text)
    if spec.kind == "float":
        if not math.isfinite(number := float(text)):
            raise ValueError(f"a number is needed, not {text}")
        return number
    if spec.kind == "count":
        return parse_count(text)
    if spec.kind == "json":
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            return text  # a path, a level, or a dotted member: vLLM's own config class decides
        return value
    return text


def parse_count(text: str) -> int | str:
    """A count as vLLM's `human_readable_int` reads it; "auto" stays.

    >>> parse_count("128K"), parse_count("25.6k"), parse_count("131072")
    (131072, 25600, 131072)
    """
    if text == "auto":
        return text
    if text[-1:] in _MULTIPLIERS:
        return int(float(text[:-1]) * _MULTIPLIERS[text[-1]])
    return int(text)


def _unknown(word: str) -> CheckResult:
    nearest = nearest_flag(word)
    hint = f"; did you mean {nearest}?" if nearest else ""
    summary = f"vllm serve has no flag {word.partition('=')[0]}{hint}"
    return CheckResult(name=UNKNOWN_FLAG, state=State.CRITICAL, summary=summary)


def _with_defaults(
    given: dict[str, FlagValue], engine_version: str, gpu_total_bytes: int | None, gpu_name: str
) -> dict[str, FlagValue]:
    flags = {
        **default_gpu_memory_utilization(engine_version),
        **batch_defaults(engine_version, gpu_total_bytes, gpu_name),
    }
    filled = {name: FlagValue(value=value, origin=origin) for name, (value, origin) in flags.items()}
    return filled | given
