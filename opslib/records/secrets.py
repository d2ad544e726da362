"""The secrets that a run knows: behind its references, and in the environment of its process."""

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from opslib.domain.redaction import is_worth_hiding, says_secret
from opslib.errors import BadParameter, reason_of


def resolve_reference(reference: str) -> str:
    """The value behind `env:NAME`, `file:PATH` (white space around it dropped) or `keyring:SERVICE/NAME`.

    Raises BadParameter where there is none, and for a keyring where the package `keyring` is not installed.
    """
    kind, _, place = reference.partition(":")
    if kind == "env":
        value, without = os.environ.get(place, ""), "no such variable is set"
    elif kind == "keyring":
        value, without = _from_keyring(reference, place), "the keyring holds no such password"
    else:
        value, without = _from_file(reference, place), "the file is empty"
    if not value:
        raise BadParameter(f"{reference}: {without}")
    return value


def _from_file(reference: str, place: str) -> str:
    try:
        return Path(place).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"{reference}: the file can't be read: {reason_of(error)}") from error


def _from_keyring(reference: str, place: str) -> str:
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        raise BadParameter(f"{reference}: the package keyring is not installed; give env:NAME or file:PATH") from None
    service, _, name = place.rpartition("/")
    try:
        return keyring.get_password(service, name) or ""
    except Exception as error:  # each backend has its own
        raise BadParameter(f"{reference}: the keyring gives nothing: {reason_of(error)}") from error


def reference_secrets(references: Iterable[str]) -> tuple[str, ...]:
    """The values behind references; raises BadParameter with one line for each that has none."""
    values, problems = [], []
    for reference in references:
        try:
            values.append(resolve_reference(reference))
        except BadParameter as error:
            problems.append(error.message)
    if problems:
        raise BadParameter("\n".join(problems))
    return tuple(values)


def environment_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of environment variables whose names say secret; paths and short values are left out.

    >>> environment_secrets({"HF_TOKEN": "abcdefgh", "SSH_KEY": "/home/x/.ssh/id", "N_TOKEN": "4", "HOME": "/home/x"})
    ('abcdefgh',)
    """
    return tuple(value for name, value in environment.items() if says_secret(name) and is_worth_hiding(value))
