"""The secrets that a run knows: behind its references, and in the environment of its process."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from opslib.domain.redaction import says_secret
from opslib.errors import BadParameter, reason_of

MIN_SECRET_LENGTH = 8  # a shorter value of the environment is a switch or a number, and would be found everywhere


def resolve_reference(reference: str) -> str:
    """The value behind `env:NAME` or `file:PATH` (surrounding white space dropped); raises BadParameter without one."""
    kind, _, place = reference.partition(":")
    if kind == "env":
        value = os.environ.get(place, "")
    else:
        try:
            value = Path(place).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadParameter(f"{reference}: the file can't be read: {reason_of(error)}") from error
    if not value:
        raise BadParameter(f"{reference}: {'no such variable is set' if kind == 'env' else 'the file is empty'}")
    return value


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
    return tuple(
        value
        for name, value in environment.items()
        if says_secret(name) and len(value) >= MIN_SECRET_LENGTH and not value.startswith(("/", "~"))
    )
