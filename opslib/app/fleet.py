"""Which hosts a fleet is: what aliases and labels of the inventory mean."""

from collections.abc import Sequence
from pathlib import Path

from opslib.domain.rollout import choose_hosts
from opslib.hosts.inventory import load_inventory


def fleet_hosts(words: Sequence[str]) -> tuple[str, ...]:
    """The aliases that aliases, labels and `all` mean here; raises UnknownName, BadParameter, contacts nobody."""
    inventory = load_inventory()
    where = Path(inventory.path).name if inventory.path else "no hosts.toml"
    return choose_hosts(words, inventory.hosts, where)
