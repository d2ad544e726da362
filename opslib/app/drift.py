"""Hosts that should be alike, asked side by side and compared."""

import secrets
from collections.abc import Sequence

from opslib.app.binding import is_rehearsal_alias, open_bound_host
from opslib.app.many import ask_hosts
from opslib.domain.drift import DriftReport, compare_hosts
from opslib.domain.drift_facts import HostFacts
from opslib.domain.drift_reading import own_places
from opslib.domain.host import Host, HostSettings
from opslib.errors import BadParameter, UnknownName
from opslib.hosts.inventory import load_inventory
from opslib.workflow.drift import ask_facts


def find_drift(aliases: Sequence[str], units: Sequence[str] = ()) -> DriftReport:
    """What differs between these hosts; without `units` all engine units are compared by their names.

    Raises BadParameter for fewer than two hosts, UnknownName for a unit that no host knows.
    """
    wanted = tuple(dict.fromkeys(aliases))
    if len(wanted) < 2:
        raise BadParameter("one host differs from nobody", hint="name two hosts at least, or a label")
    facts = gather_facts(wanted, units)
    names = {unit.removesuffix(".service") for unit in units}
    strange = sorted(names - {unit for host in facts for unit in host.units})
    if strange and not any(host.problem for host in facts):
        raise UnknownName(f"no host knows the unit {strange[0]}", hint="`opslib survey --all` lists engine units")
    return compare_hosts(facts)


def gather_facts(aliases: Sequence[str], units: Sequence[str] = ()) -> tuple[HostFacts, ...]:
    """What each host is compared by, in the order of `aliases`; one that can't be asked says why."""
    salt = secrets.token_hex(16)  # for this comparison alone: kept nowhere
    known = _settings(aliases)

    def ask(host: Host) -> HostFacts:
        return ask_facts(host, units, salt=salt, own=own_places(host.settings, known))

    return ask_hosts(aliases, ask, lambda why: HostFacts(host=why.alias, problem=why.error.message))


def _settings(aliases: Sequence[str]) -> list[HostSettings]:
    """What hosts.toml says of each; a practice host's places are known once it runs."""
    inventory = load_inventory()
    return [
        open_bound_host(alias).settings if is_rehearsal_alias(alias) else inventory.settings(alias) for alias in aliases
    ]
