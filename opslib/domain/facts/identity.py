"""Who answered: host name, boot, login, kernel, Python and the machine's own time."""

import json
from datetime import datetime

from pydantic import ValidationError

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer


class Identity(Value):
    """Who answered, as the machine itself says it."""

    hostname: str
    boot_id: str
    machine_id: str
    user: str
    uid: int
    kernel: str
    python_version: str
    asked_at: datetime  # the machine's clock


def identity_program() -> tuple[str, dict[str, object]]:
    """Asks, in one round trip, who answers: the on-host program `identity` and its arguments."""
    return ("identity", {})


def parse_identity(text: str) -> Identity:
    """Reads the one JSON line of the on-host program; raises UnexpectedAnswer for anything else."""
    try:
        return Identity.model_validate(json.loads(text))
    except (ValueError, RecursionError, ValidationError) as error:
        raise UnexpectedAnswer(f"the host's identity can't be read: {text.strip()[:200]!r}") from error
