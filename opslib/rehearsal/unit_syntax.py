"""The syntax of unit files: lines, words, specifiers, variables, command lines (systemd.syntax(7), systemd.unit(5))."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_UNIT_TYPES = frozenset(
    "service socket target timer mount path slice scope device swap automount".split()  # noqa: SIM905 - read as a line
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True)
class ExecCommand:
    """One Exec line: program, argument vector, and whether its failure is ignored ("-")."""

    path: str
    argv: tuple[str, ...]
    ignore_failure: bool = False


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Number (of its last physical line) and text of each line; a trailing backslash joins with a space.

    Comments and empty lines are dropped, also between continued lines (systemd.syntax(7)).

    >>> list(logical_lines("A=1 \\\n# no\n  2\n;x\n"))
    [(3, 'A=1  2')]
    """
    pending: str | None = None
    number = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if line.startswith(("#", ";")) or (pending is None and not line):
            continue
        joined = line if pending is None else f"{pending} {line}"
        if line.endswith("\\"):
            pending = joined[:-1]
            continue
        pending = None
        yield number, joined.strip()
    if pending is not None:
        yield number, pending.strip()


def split_words(text: str) -> list[str]:
    r"""Words with quotes and C escapes removed (systemd.syntax(7), "Quoting"); ValueError for an open quote.

    >>> split_words(r'''a "b c" 'd "e"' x\x20y''')
    ['a', 'b c', 'd "e"', 'x y']
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    position = 0
    while position < len(text):
        ch = text[position]
        position += 1
        if ch == "\\":
            escaped, position = _unescape(text, position)
            word = (word or "") + escaped
        elif quote:
            if ch == quote:
                quote = ""
            else:
                word = (word or "") + ch
        elif ch in "\"'" and word is None:
            quote, word = ch, ""
        elif ch in "\"'":
            quote = ch
        elif ch.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + ch
    if quote:
        raise ValueError(text)
    return words if word is None else [*words, word]


def _unescape(text: str, position: int) -> tuple[str, int]:
    ch = text[position]
    if ch == "x":
        return _character(int(text[position + 1 : position + 3], 16)), position + 3
    if ch in "0123":
        return _character(int(text[position : position + 3], 8)), position + 3
    return _ESCAPES.get(ch, ch), position + 1


def _character(code: int) -> str:
    return bytes([code]).decode("utf-8", "surrogateescape")


def expand_specifiers(text: str, name: str) -> str:
    """The text with %n, %N, %p, %j, %i, the directories %t, %S, %C and %% replaced (systemd.unit(5), "Specifiers").

    >>> expand_specifiers("%i of %n is 100%%", "vllm@a.service")
    'a of vllm@a.service is 100%'
    """
    stem = name.rpartition(".")[0] or name
    prefix, _, instance = stem.partition("@")
    values = {"n": name, "N": stem, "p": prefix, "j": prefix.rpartition("-")[2], "i": instance, "%": "%"}
    values |= {"I": instance, "J": values["j"], "P": prefix, "t": "/run", "S": "/var/lib", "C": "/var/cache"}
    return re.sub(r"%(.)", lambda match: values.get(match[1], match[0]), text)


def expand_variables(argv: tuple[str, ...], environment: Mapping[str, str]) -> list[str]:
    """The argument vector with `${X}` replaced in place and a word `$X` split at white space; `$$` is `$`."""
    words: list[str] = []
    for word in argv:
        alone = re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word)
        if alone:
            words += environment.get(alone[1], "").split()
            continue
        words.append(
            re.sub(
                r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}",
                lambda match: environment.get(match[1], "") if match[1] else "$",
                word,
            )
        )
    return words


def parse_exec(value: str) -> ExecCommand:
    """One command line of an Exec setting, its prefix characters taken off."""
    words = split_words(value)
    first = words[0]
    program = first.lstrip("-@:+!")
    if not program:
        raise ValueError(value)
    return ExecCommand(program, (program, *words[1:]), "-" in first[: len(first) - len(program)])


def unit_name(name: str) -> str:
    """The name with its suffix: ".service" where it has none.

    >>> unit_name("vllm-minimax"), unit_name("a.service")
    ('vllm-minimax.service', 'a.service')
    """
    return name if "." in name and name.rpartition(".")[2] in _UNIT_TYPES else f"{name}.service"
