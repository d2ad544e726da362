"""From an alias to a host that answers: the inventory's, or a rehearsal host started on first use."""

import atexit

from opslib.app.drill import find_drill, is_drill
from opslib.domain.host import Host
from opslib.domain.problems import nearest
from opslib.errors import UnknownName
from opslib.hosts import open_host
from opslib.hosts.inventory import load_inventory
from opslib.rehearsal.scenarios import DEFAULT_SCENARIO, list_scenarios

REHEARSAL = "rehearsal"

_rehearsals: dict[str, object] = {}


def is_rehearsal_alias(alias: str) -> bool:
    """Whether `alias` means the practice host (`rehearsal` or `rehearsal:SCENARIO`)."""
    return alias == REHEARSAL or alias.startswith(f"{REHEARSAL}:")


def scenario_of(alias: str) -> str:
    """The scenario that a rehearsal alias names; a drill's doesn't, and is looked up.

    >>> scenario_of("rehearsal"), scenario_of("rehearsal:healthy")
    ('sampler-oom', 'healthy')
    """
    name = alias.partition(":")[2] or DEFAULT_SCENARIO
    return find_drill(name).scenario if is_drill(alias) else name


def check_alias(alias: str) -> None:
    """Raise UnknownName, with the nearest name, for an alias that is neither in the inventory nor a rehearsal's."""
    if not is_rehearsal_alias(alias):
        load_inventory().settings(alias)
        return
    scenario, known = scenario_of(alias), [str(name) for name in list_scenarios()]
    if scenario not in known:
        raise UnknownName(f"unknown scenario {scenario!r}{nearest(scenario, known)}")


def open_bound_host(alias: str) -> Host:
    """The host behind `alias`, not yet connected; a rehearsal host is started and ends with this process."""
    if not is_rehearsal_alias(alias):
        return open_host(load_inventory().settings(alias))
    if alias not in _rehearsals:
        from opslib.rehearsal.server import start_rehearsal  # noqa: PLC0415 - only a rehearsal needs the server

        rehearsal = start_rehearsal(scenario_of(alias))
        atexit.register(rehearsal.close)
        _rehearsals[alias] = rehearsal
    settings = _rehearsals[alias].settings  # type: ignore[attr-defined]
    told = {"labels": ()} if is_drill(alias) else {}  # they name the scenario
    return open_host(settings.model_copy(update={"alias": alias, **told}))
