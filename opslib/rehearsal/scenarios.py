"""Scenarios of the rehearsal host: what is different from a healthy deploy, and what the kit should say about it."""

import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from opslib.domain.states import State, Value
from opslib.errors import UnknownName

DEFAULT_SCENARIO = "sampler-oom"  # the story
_COMMON = "figures"  # figures.toml: the story's figures, which every scenario starts from


class Expected(Value):
    """What `90-deploy` ends with on this host, with the scenario's parameters and consent given."""

    state: State
    cause: str  # an id of the failure catalogue, that of a cured failure too; "none" where nothing fails
    exit_code: int  # of `opslib`
    sentence: str  # a pattern that stands in the record: what an operator reads


class Before(Value):
    """Something that is done to the host before the deploy begins.

    download_tiny: a second checkpoint, small enough to be hashed, lies at `path` under models_dir. remove_file,
    truncate_file and flip_bit: `path` is relative to models_dir. listen: a foreign program holds `port`.
    hold_gpu_memory: a foreign process holds `gib` on each of `gpus`.
    """

    kind: Literal["download_tiny", "remove_file", "truncate_file", "flip_bit", "listen", "hold_gpu_memory"]
    path: str | None = None
    to_bytes: int | None = None  # truncate_file: the size left
    at_byte: int | None = None  # flip_bit: whose lowest bit is turned
    port: int | None = None
    program: str | None = None
    gpus: tuple[int, ...] = ()
    gib: float | None = None


class During(Value):
    """Something that happens once, `after_s` after a line of the journal matches the pattern `when`.

    release_gpu_memory: the foreign holders end. cut_link: all SSH connections are cut, new ones for `for_s` too.
    oom_kill: the kernel kills one process named `process`. lose_gpu: the GPU of index `gpu` falls off the bus.
    """

    kind: Literal["release_gpu_memory", "cut_link", "oom_kill", "lose_gpu"]
    when: str
    after_s: float = 0.0  # real seconds
    for_s: float = 0.0
    process: str = ""
    gpu: int = 0


class Scenario(Value):
    """A named practice situation: figures of the engine, GPUs, faults and the expected end."""

    name: str
    sentence: str
    clock_factor: float
    gpus: dict[str, Any]
    figures: dict[str, Any]
    before: tuple[Before, ...] = ()
    during: tuple[During, ...] = ()
    parameters: Mapping[str, Any] = {}  # of `90-deploy`, where this situation needs others than the defaults
    unit_time_factor: float = 1.0  # divides the unit manager's waits (RestartSec= and the like)
    expected: Expected


def list_scenarios() -> tuple[str, ...]:
    """The names of all scenarios, sorted.

    >>> "sampler-oom" in list_scenarios()
    True
    """
    names = (entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))
    return tuple(sorted(name for name in names if name != _COMMON))


def load_scenario(name: str) -> Scenario:
    """The scenario of that name; raises UnknownName with the nearest one."""
    if name not in list_scenarios():
        nearest = difflib.get_close_matches(name, list_scenarios(), n=1, cutoff=0.6)
        suggestion = f"the nearest is {nearest[0]!r}" if nearest else f"there are {', '.join(list_scenarios())}"
        raise UnknownName(f"There is no scenario {name!r}.", hint=suggestion)
    merged = _merged(_read(_COMMON), _read(name))
    return Scenario.model_validate({"name": name, **merged})


def _folder() -> Any:
    return resources.files("opslib.rehearsal") / "scenarios"


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, table by table."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result
