"""Reads a unit's files into settings, command and variables, without the values that may be secret.

What a host has of its own (its directories, its name) is written as a placeholder, so that two hosts that are set up
alike read alike; the value of a variable, and of a flag whose name says secret, is a digest salted by whoever asks.
"""

import hashlib
import hmac
import re
import shlex
from typing import Any, Dict, List, Optional, Tuple

from opslib.onhost.secret_names import says_secret

DIGEST = "digest:"
_PREFIXES = "@-:+!|"  # of an executable, systemd.service(5)
_LEAST = 3  # characters of a name that is searched for in other texts


class Reader:
    """What must not be told, and what is this host's own: [place, placeholder] pairs, the longest first."""

    def __init__(self, salt: str, rule: Dict[str, Any], own: List[List[str]]) -> None:
        self._salt = salt.encode()
        self._rule = rule
        pairs = sorted((pair for pair in own if len(pair[0]) >= _LEAST), key=lambda pair: -len(pair[0]))
        self._own = [(re.compile(r"(?<![\w.-])%s(?![\w-])" % re.escape(text)), name) for text, name in pairs]

    def plain(self, text: str) -> str:
        """The text with this host's own places as placeholders."""
        for pattern, name in self._own:
            text = pattern.sub(name, text)
        return text

    def digest(self, value: str) -> str:
        """A digest that says whether two values are alike, and nothing else."""
        return DIGEST + hmac.new(self._salt, self.plain(value).encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def words(self, argv: List[str]) -> List[str]:
        """A command line without the values of flags whose names say secret."""
        told, is_next_secret = [], False
        for word in argv:
            name, equals, value = word.partition("=")
            is_flag = word.startswith("--")
            is_secret = is_flag and says_secret(name, self._rule)
            if is_flag:
                told.append("%s=%s" % (name, self.digest(value)) if is_secret and equals else self.plain(word))
            else:
                told.append(self.digest(word) if is_next_secret else self.plain(word))
            is_next_secret = is_secret and not equals
        return told

    def variables(self, pairs: Dict[str, str]) -> Dict[str, str]:
        """Names, and digests of the values."""
        return {name: self.digest(value) for name, value in sorted(pairs.items())}


def read_unit(texts: List[str], reader: Reader) -> Dict[str, Any]:
    """Settings as [section, key, value], the command, the variables of Environment=, and EnvironmentFile= paths.

    Later files rule; an empty assignment forgets those before it. ExecStart= and Environment= are no settings here:
    command and variables are as they stand there, so they are not for others to see.
    """
    settings = []  # type: List[Tuple[str, str, str]]
    for section, key, value in _entries(texts):
        settings = [row for row in settings if row[:2] != (section, key)] if not value else settings
        settings += [(section, key, value)] if value else []
    environment = {}  # type: Dict[str, str]
    for value in _values(settings, "Environment"):
        environment.update(assignments(split(value)))
    command = split((_values(settings, "ExecStart") or [""])[-1])
    command = [word.replace("%%", "%").replace("$$", "$") for word in command]
    command = [command[0].lstrip(_PREFIXES), *command[1:]] if command else []
    return {
        "settings": [
            [section, key, _quiet(key, value, reader)]
            for section, key, value in settings
            if key not in ("ExecStart", "Environment") and not key.startswith("X-")
        ],
        "argv": command,
        "environment": environment,
        "environment_files": _values(settings, "EnvironmentFile"),
    }


def _quiet(key: str, value: str, reader: Reader) -> str:
    """A setting's value; of a command the words, whose secrets are digests."""
    return " ".join(reader.words(split(value))) if key.startswith("Exec") else reader.plain(value)


def _values(settings: List[Tuple[str, str, str]], key: str) -> List[str]:
    return [value for section, name, value in settings if (section, name) == ("Service", key)]


def _entries(texts: List[str]) -> List[Tuple[str, str, str]]:
    """Section, key and value of each assignment (systemd.syntax(7)): comments dropped, continuations joined."""
    found, section, pending = [], "", ""
    for text in texts:
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped[:1] in ("#", ";") or (not stripped and not pending):
                continue
            if stripped.endswith("\\"):
                pending += stripped[:-1] + " "
                continue
            whole, pending = (pending + stripped).strip(), ""
            if whole.startswith("[") and whole.endswith("]"):
                section = whole[1:-1]
            elif "=" in whole:
                key, _, value = whole.partition("=")
                found.append((section, key.strip(), value.strip()))
    return found


def split(text: str) -> List[str]:
    """The words of a value, quotes undone; where one is never closed, its words by blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def assignments(words: List[str]) -> Dict[str, str]:
    """NAME=value words as a dictionary; specifiers' doubled signs undone."""
    return {name: value.replace("%%", "%") for name, equals, value in (word.partition("=") for word in words) if equals}


def file_variables(text: str) -> Dict[str, str]:
    """The variables of an environment file (systemd.exec(5))."""
    lines = (line.strip() for line in text.replace("\\\n", "").split("\n"))
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#;" and "=" in line)
    return {name.strip(): " ".join(split(value)) for name, _, value in pairs}


def weights_content(paths: List[str], digest_of: Any) -> Tuple[Optional[str], int]:
    """One digest over the known digests of these files (None where one isn't known), and of how many it is known."""
    known = [(path, digest_of(path)) for path in sorted(paths)]
    n_known = sum(digest is not None for _, digest in known)
    if not known or n_known < len(known):
        return None, n_known
    return hashlib.sha256(repr(known).encode()).hexdigest(), n_known
