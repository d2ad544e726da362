"""How systemd splits and quotes the words of a unit file.

Sources: systemd.service(5) "Command lines", systemd.syntax(7) "Quoting", systemd.unit(5) "Specifiers";
read against systemd 252.
"""

import re
from collections.abc import Sequence

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

_PLAIN = re.compile(r"[\w@%$+=:,./~^*?!()\[\]{}&|<>-][\w@%$+=:,./~^*?!()\[\]{}&|<>#;-]*")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_CODED = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}


class Word(Value):
    """One word of a command line: as it stands in the file, and as the program gets it."""

    raw: str
    text: str


def quote_word(text: str, *, is_command: bool = True) -> str:
    r"""How `text` must stand in a unit file to arrive unchanged.

    `is_command=False` is for Environment=, where "$" has no meaning. Raises ValueError for a NUL byte.

    >>> print(quote_word('{"a": "100%"}'), quote_word("$HOME"), quote_word("--port"))
    "{\"a\": \"100%%\"}" $$HOME --port
    """
    if "\0" in text:
        raise ValueError("an argument can't hold a NUL byte")
    escaped = text.replace("%", "%%")
    if is_command:
        escaped = escaped.replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    return '"' + "".join(_escaped(character) for character in escaped) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\x{ord(character):02x}" if ord(character) < 32 or ord(character) == 127 else character


def split_words(value: str, *, is_command: bool = True) -> tuple[Word, ...]:
    """The words of an ExecStart= value (or of Environment=), quotes and escapes undone.

    Specifiers (`%h`) and variables (`${X}`) stay as they are: only systemd knows their values.
    Raises UnexpectedAnswer for an unclosed quote.
    """
    return tuple(word for word, _ in locate_words(value, is_command=is_command))


def locate_words(value: str, *, is_command: bool = True) -> list[tuple[Word, int]]:
    """The same, each word with the place where it begins."""
    words: list[tuple[Word, int]] = []
    position = 0
    while (position := _skip_blanks(value, position)) < len(value):
        text, end = _read_word(value, position)
        words.append((Word(raw=value[position:end], text=_expanded(text, is_command=is_command)), position))
        position = end
    return words


def _skip_blanks(value: str, position: int) -> int:
    while position < len(value) and value[position] in " \t\n\r":
        position += 1
    return position


def _read_word(value: str, position: int) -> tuple[str, int]:
    text: list[str] = []
    quote = ""
    while position < len(value):
        character = value[position]
        if character == "\\" and position + 1 < len(value):
            piece, position = _unescaped(value, position + 1)
            text.append(piece)
            continue
        if quote and character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character in " \t\n\r":
            break
        else:
            text.append(character)
        position += 1
    if quote:
        raise UnexpectedAnswer(f"unit file: a quote is never closed: {value[:80]!r}")
    return "".join(text), position


def _unescaped(value: str, position: int) -> tuple[str, int]:
    """The character that an escape stands for, and where reading goes on; an unknown escape stays as written."""
    letter = value[position]
    if letter in _CODED:
        length, base = _CODED[letter]
        digits = value[position + 1 : position + 1 + length]
        if re.fullmatch(f"[0-9A-Fa-f]{{{length}}}", digits):
            return chr(int(digits, base)), position + 1 + length
    if re.fullmatch("[0-7]{3}", value[position : position + 3]):
        return chr(int(value[position : position + 3], 8)), position + 3
    if letter in _UNESCAPES:
        return _UNESCAPES[letter], position + 1
    return letter if letter in "\\\"'; " else f"\\{letter}", position + 1


def _expanded(text: str, *, is_command: bool) -> str:
    text = text.replace("%%", "%")
    return text.replace("$$", "$") if is_command else text


def group_by_flag(words: Sequence[str]) -> list[list[str]]:
    """The words of a command line in lines: each flag starts a new one and keeps the values after it.

    >>> group_by_flag(["vllm", "serve", "/m", "--port", "8000", "--enforce-eager"])
    [['vllm', 'serve', '/m'], ['--port', '8000'], ['--enforce-eager']]

    Flags of a program that runs the command behind `--` are none of the command's.

    >>> group_by_flag(["shim.py", "--stall-s", "9", "--", "vllm", "serve", "--port", "8000"])[1:]
    [['--port', '8000']]
    """
    start = words.index("--") + 1 if "--" in words else 0
    lines: list[list[str]] = [list(words[:start])] if words else []
    for word in words[start:]:
        if re.match(r"-{1,2}[A-Za-z]", word) and lines[0]:
            lines.append([])
        lines[-1].append(word)
    return lines
