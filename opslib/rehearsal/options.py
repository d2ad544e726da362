"""Command-line options as getopt reads them, limited to those that the kit uses; the rest is refused by name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NO_VALUE, VALUE = (
    "",
    "value",
)  # any other kind is a pattern: the value is optional, the next word is taken if it matches


class OptionRefused(Exception):  # noqa: N818
    """An option that this kit never uses."""

    def __init__(self, option: str) -> None:
        super().__init__(f"rehearsal host: option {option} is not one that this kit uses")


@dataclass
class Parsed:
    """Options by long name with their values in order, and the words that are none."""

    options: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.options

    def last(self, name: str, default: str = "") -> str:
        """The value given last."""
        return self.options.get(name, [default])[-1]

    def all(self, name: str) -> list[str]:
        """All values given."""
        return self.options.get(name, [])


def parse_options(argv: Sequence[str], kinds: Mapping[str, str], short: Mapping[str, str]) -> Parsed:
    """Options and words of `argv`, mixed in any order; `--` ends the options.

    >>> parse_options(["show", "-pId", "--no-pager", "a"], {"--property": VALUE, "--no-pager": ""}, {"p": "--property"})
    Parsed(options={'--property': ['Id'], '--no-pager': ['']}, words=['show', 'a'])
    """
    parsed, rest = Parsed(), list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            parsed.words += rest
            break
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            if name not in kinds or (separator and kinds[name] == NO_VALUE):
                raise OptionRefused(name)
            _add(parsed, name, value if separator else None, kinds[name], rest)
        elif word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            _short(parsed, word, kinds, short, rest)
        else:
            parsed.words.append(word)
    return parsed


def _short(parsed: Parsed, word: str, kinds: Mapping[str, str], short: Mapping[str, str], rest: list[str]) -> None:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in short:
            raise OptionRefused(f"-{letter}")
        kind = kinds[short[letter]]
        attached = letters if kind != NO_VALUE and letters else None
        _add(parsed, short[letter], attached, kind, rest)
        if attached is not None:
            return


def _add(parsed: Parsed, name: str, attached: str | None, kind: str, rest: list[str]) -> None:
    value = attached
    if value is None:
        takes_next = kind == VALUE or (kind != NO_VALUE and bool(rest) and bool(re.fullmatch(kind, rest[0])))
        if takes_next and not rest:
            raise OptionRefused(f"{name} without a value")
        value = rest.pop(0) if takes_next else ""
    parsed.options.setdefault(name, []).append(value)
