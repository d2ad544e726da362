"""What would align one host with the others: a command of the kit, or in words what the kit does not do."""

import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from opslib.domain.drift_facts import HostFacts

_SET = {"absent", "not set", "none"}


class Wanted(NamedTuple):
    """A fact that a host has otherwise than most: what it is about, its value there, and that of the others."""

    unit: str
    area: str
    name: str
    wrong: str
    right: str


def align(wanted: Wanted, facts: HostFacts) -> str:
    """How this host comes to have what most others have."""
    return _BY_AREA.get(wanted.area, _deploy)(wanted, facts)


def _deploy(wanted: Wanted, facts: HostFacts, *more: str) -> str:
    """A deploy writes the whole unit, so it needs FILE: the parameters that the others were deployed with."""
    given = "".join(f" -p {shlex.quote(each)}" for each in more)
    return f"opslib run 90-deploy -f FILE -p host={facts.host} -p unit={wanted.unit}{given}"


def _restart(wanted: Wanted, facts: HostFacts) -> str:
    return f"opslib restart {facts.host} {wanted.unit}"


_HOST = {
    "vLLM": "on {host}, in the engine's environment: python -m pip install vllm=={right}",
    "engine's Python": "on {host}: make the engine's environment anew with Python {right}",
    "driver": "on {host}: apt-get install the NVIDIA driver {right}, then reboot",
    "kernel": "on {host}: apt-get install linux-image-{right}, then reboot",
    "Python": "on {host}: apt-get install python3, as {right} came with the others' system",
    "GPUs": "opslib survey {host}  (is a GPU lost?)",
}


def _host(wanted: Wanted, facts: HostFacts) -> str:
    return _HOST.get(wanted.name, "opslib survey {host}").format(host=facts.host, right=wanted.right)


def _units(wanted: Wanted, facts: HostFacts) -> str:
    if wanted.right == "absent":
        return f"opslib stop {facts.host} {wanted.name}  (if it isn't meant to be there)"
    return _deploy(wanted._replace(unit=wanted.name), facts)


def _state(wanted: Wanted, facts: HostFacts) -> str:
    verb = {"active": "start", "activating": "start", "inactive": "stop"}.get(wanted.right, "status")
    verb = "investigate" if wanted.wrong == "failed" else verb
    return f"opslib {verb} {facts.host} {wanted.unit}"


def _said(wanted: Wanted, facts: HostFacts, area: str) -> bool:
    """Whether the unit's files say already what the process does not have yet."""
    found = facts.areas.get((wanted.unit, area))
    return found is not None and found.values.get(wanted.name, "absent") == wanted.right


def _flag(wanted: Wanted, facts: HostFacts) -> str:
    if wanted.area == "flags" and _said(wanted, facts, "unit's flags"):
        return _restart(wanted, facts)
    name, right = wanted.name, wanted.right
    if not name.startswith("--") or right.startswith("digest:"):
        return _deploy(wanted, facts, *([f"model={right}"] if name == "model path" else []))
    flag = name if right == "set" else f"{name}={right}"
    given = f"--unset={name}" if right in _SET else f"--set={shlex.quote(flag)}"
    change = f"opslib adopt {facts.host} {wanted.unit} {given}"
    # where the process has what the others have, only the next start would not
    return change if wanted.area == "unit's flags" else f"{change} && {_restart(wanted, facts)}"


def _variable(wanted: Wanted, facts: HostFacts) -> str:
    if wanted.area == "variables" and _said(wanted, facts, "unit's variables"):
        return _restart(wanted, facts)
    if wanted.right in _SET:
        return f"on {facts.host}: take {wanted.name} out of the unit's files, then {_restart(wanted, facts)}"
    return _deploy(wanted, facts, f"environment={{{wanted.name}: env:{wanted.name}}}")


def _limit(wanted: Wanted, facts: HostFacts) -> str:
    """A process that has something else than its unit says only has to be started anew."""
    settings = facts.areas.get((wanted.unit, "settings"))
    said = settings.values.get(f"[Service] Limit{wanted.name}", "") if settings else ""
    soft = wanted.wrong.partition(":")[0].replace("unlimited", "infinity")
    return _deploy(wanted, facts) if said == soft else _restart(wanted, facts)


def _model(wanted: Wanted, facts: HostFacts) -> str:
    paths = [
        found.values["model path"]
        for area in ("flags", "unit's flags")
        if (found := facts.areas.get((wanted.unit, area))) and "model path" in found.values
    ]
    path = next(iter(paths), "MODEL").removeprefix("{models_dir}/").removeprefix("{root}/srv/models/")
    level = " --level digest" if wanted.name in {"weights' content", "model"} else ""
    return f"opslib verify {facts.host} {shlex.quote(path)}{level}"


_BY_AREA: Mapping[str, Callable[[Wanted, HostFacts], str]] = {
    "host": _host,
    "units": _units,
    "state": _state,
    "flags": _flag,
    "unit's flags": _flag,
    "variables": _variable,
    "unit's variables": _variable,
    "limits": _limit,
    "model": _model,
}
