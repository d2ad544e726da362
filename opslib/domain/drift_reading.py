"""What hosts that should be alike are asked, and what each of them said."""

import json
import posixpath
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from opslib.domain.facts.gpu import gpu_memory_command
from opslib.domain.facts.identity import Identity
from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import HostSettings
from opslib.domain.redaction import secret_rule
from opslib.domain.states import Value
from opslib.domain.survey_reading import (
    COMMAND_TIMEOUT_S,
    GPU_TIMEOUT_S,
    CommandAnswer,
    list_units_command,
    show_units_command,
)
from opslib.errors import UnexpectedAnswer

_PLACES = ("vllm", "models_dir", "state_dir", "unit_dir", "address")


class EngineReading(Value):
    """The installed engine: its version, the Python that it lies in, or why neither is known."""

    version: str = ""
    python: str = ""
    problem: str = ""


class ProcessReading(Value):
    """A unit's main process: command line, digests of its variables' values, limits as "soft:hard"."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    environment_problem: str = ""
    limits: Mapping[str, str]


class ModelReading(Value):
    """The model at the unit's path: digests of what lies there; `content` over the receipts of all weight files."""

    problem: str = ""
    model_digest: str = ""
    config_digest: str = ""
    generation_digest: str = ""
    template: str = ""
    template_problem: str = ""
    content: str = ""
    n_hashed: int = 0
    n_files: int = 0


class DriftUnit(Value):
    """One unit as its files and its process tell; no value of a variable, nor of a flag that says secret."""

    id: str
    problem: str = ""
    load_state: str = ""
    active_state: str = ""
    settings: tuple[tuple[str, str, str], ...] = ()  # section, key, value
    argv: tuple[str, ...] = ()  # of ExecStart=
    environment: Mapping[str, str] = {}
    environment_problem: str = ""
    process: ProcessReading | None = None
    model: ModelReading | None = None


class DriftReading(Value):
    """Everything that the on-host program `drift` read."""

    identity: Identity
    gpus: CommandAnswer | None
    engine: EngineReading | None
    units: tuple[DriftUnit, ...]
    units_problem: str = ""


def drift_program(
    settings: HostSettings, units: Sequence[str] = (), *, salt: str, own: Mapping[str, str]
) -> tuple[str, dict[str, object]]:
    """Asks everything that is compared in one round trip; without `units` the host looks for engines.

    `salt` is the same for all hosts of one comparison, and kept nowhere; `own` are this host's own places.
    """
    commands = {"list_units": list_units_command(), "show": show_units_command(), "gpus": gpu_memory_command()}
    return "drift", {
        "units": [unit_name(unit) for unit in units],
        "unit_dir": settings.unit_dir,
        "state_dir": settings.state_dir,
        "vllm": settings.vllm,
        "commands": {name: list(argv) for name, argv in commands.items()},
        "timeout_s": COMMAND_TIMEOUT_S,
        "gpu_timeout_s": GPU_TIMEOUT_S,
        "salt": salt,
        "own": [[text, name] for text, name in own.items()],
        "secret": dict(secret_rule()),
    }


def own_places(settings: HostSettings, others: Sequence[HostSettings]) -> dict[str, str]:
    """The places of a host that hosts.toml gives each host its own of, with the word that stands for each.

    >>> hosts = [HostSettings(alias=a, address="h", models_dir=f"/data/{a}/models") for a in "ab"]
    >>> own_places(hosts[0], hosts)
    {'/data/a/models': '{models_dir}'}
    """
    places = {name: str(getattr(settings, name)) for name in _PLACES}
    found = {
        text: f"{{{name}}}"
        for name, text in places.items()
        if any(str(getattr(other, name)) != text for other in others)
    }
    root, roots = _root(settings), {_root(other) for other in others}
    return {**({root: "{root}"} if len(roots) > 1 and root != "/" else {}), **found}


def _root(settings: HostSettings) -> str:
    """The directory that all of a host's places lie in; "/" for any but a practice host's."""
    return posixpath.commonpath([settings.unit_dir, settings.state_dir, settings.models_dir, settings.vllm])


def parse_drift(text: str) -> DriftReading:
    """Reads the one JSON document of the on-host program; raises UnexpectedAnswer for anything else."""
    try:
        return DriftReading.model_validate(json.loads(text))
    except (ValueError, RecursionError, ValidationError) as error:
        raise UnexpectedAnswer(f"what the host said can't be read: {text.strip()[:200]!r}") from error
