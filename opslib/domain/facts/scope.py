"""Whose systemd a command asks: the machine's, or the login's own (`--user`)."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

# journalctl's names for the login's units (systemd.journal-fields(7)); processes' own ids are the same in both
_JOURNAL_WORDS = {"--unit": "--user-unit", "UNIT": "USER_UNIT", "INVOCATION_ID": "USER_INVOCATION_ID"}


def in_scope(argv: Sequence[str], scope: str) -> tuple[str, ...]:
    """The vector as it is sent to a host of this scope; only systemctl and journalctl differ.

    >>> in_scope(["systemctl", "start", "--", "x.service"], "user")
    ('systemctl', '--user', 'start', '--', 'x.service')
    >>> in_scope(["journalctl", "--unit=x.service"], "user")
    ('journalctl', '--user-unit=x.service')
    """
    words = tuple(argv)
    at = _program_index(words)
    program = posixpath.basename(words[at]) if scope == "user" and at < len(words) else ""
    if program == "systemctl":
        return (*words[: at + 1], "--user", *words[at + 1 :])
    if program == "journalctl":
        return (*words[: at + 1], *map(_journal_word, words[at + 1 :]))
    return words


# on-host programs whose arguments hold argument vectors that they run: name -> where
_CARRIED = {
    "watch": ("journal", "show", "gpu"),
    "survey": ("commands",),
    "drift": ("commands",),
    "preflight": ("commands",),
    "supervise": ("argv",),
}


def carried_vectors(program: str, arguments: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The argument vectors that an on-host program is told to run.

    >>> carried_vectors("watch", {"show": ["systemctl", "show"], "gpu": None, "port": 8000})
    [('systemctl', 'show')]
    """
    given = [arguments.get(name) for name in _CARRIED.get(program, ())]
    flat = [vector for value in given for vector in (value.values() if isinstance(value, Mapping) else [value])]
    return [tuple(vector) for vector in flat if vector]


def arguments_in_scope(program: str, arguments: Mapping[str, Any], scope: str) -> dict[str, Any]:
    """An on-host program's arguments, with the vectors in them as they are run on a host of this scope."""
    places = _CARRIED.get(program, ()) if scope == "user" else ()
    return {name: _scoped(value, scope) if name in places else value for name, value in arguments.items()}


def _scoped(value: Any, scope: str) -> Any:
    if isinstance(value, Mapping):
        return {name: list(in_scope(argv, scope)) for name, argv in value.items()}
    return list(in_scope(value, scope)) if value else value


def _program_index(words: Sequence[str]) -> int:
    if not words or words[0] != "env":
        return 0
    return 1 + next((at for at, word in enumerate(words[1:]) if "=" not in word), len(words))


def _journal_word(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{_JOURNAL_WORDS.get(name, name)}{equals}{value}" if equals else word
