"""Takes a running engine's fingerprint, from its own host."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from opslib.domain.canary import Fingerprint, canary_arguments, read_answer
from opslib.domain.host import Host
from opslib.domain.unit_file import parse_unit_file
from opslib.errors import OpslibError, UnexpectedAnswer
from opslib.workflow.facts import gather_gpus
from opslib.workflow.install import read_unit_text
from opslib.workflow.running import running_flags
from opslib.workflow.survey import utc_now

_GRACE_S = 20.0


def take_fingerprint(
    host: Host,
    *,
    unit: str,
    port: int,
    model: str = "",
    has_gpus: bool = True,
    deadline_s: float = 120.0,
    clock: Callable[[], datetime] = utc_now,
) -> Fingerprint:
    """What the engine of a unit answers to the canary's questions, one after the other, and what it runs with.

    A service that refuses or fails is a fingerprint without answers. Raises UnexpectedAnswer where the program on
    the host ended before its result.
    """
    is_safe = host.settings.is_rehearsal or _compiles_nothing(host, unit)
    where = {"port": port, "model": model, "deadline_s": deadline_s}
    arguments = {**canary_arguments(), **where, "is_safe": is_safe}
    result = host.run_program("canary", arguments, timeout_s=deadline_s + _GRACE_S)
    try:
        answer = json.loads(result.stdout)
    except (ValueError, RecursionError):
        said = result.error_text.splitlines()[-1:] or [f"exit status {result.exit_status}"]
        raise UnexpectedAnswer(f"the canary ended without an answer: {said[0]}", host=host.settings.alias) from None
    flags: dict[str, str] = {}
    gpus: list[str] = []
    with suppress(OpslibError):
        flags = running_flags(host, unit)
    if has_gpus:
        with suppress(OpslibError):
            gpus = [gpu.name for gpu in gather_gpus(host)]
    return read_answer(answer, flags=flags, gpus=gpus, host=host.settings.alias, taken_at=clock())


def _compiles_nothing(host: Host, unit: str) -> bool:
    """Whether the unit's own environment switches torch.compile off."""
    with suppress(OpslibError, ValueError):
        environment = parse_unit_file(read_unit_text(host, unit) or "").environment
        return any(environment.get(name) == "1" for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"))
    return False
