"""`opslib hosts`: the inventory."""

import json

import click

from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.hosts.inventory import load_inventory


@click.command("hosts")
@json_option
def hosts_command(as_json: bool) -> int:
    """List the hosts of the inventory (hosts.toml); the alias `rehearsal` is always there.

    Exit code 0, also without a hosts.toml; 4: it can't be read.
    """
    inventory = load_inventory()
    entries = list(inventory.hosts.values())
    if as_json:
        hosts = [entry.model_dump(mode="json") for entry in entries]
        show(json.dumps({"inventory": inventory.path, "hosts": hosts}, ensure_ascii=False))
        return 0
    rows = [
        [host.alias, host.address, str(host.port or "-"), host.user or "-", ", ".join(host.labels)] for host in entries
    ]
    rows.append(["rehearsal", "a practice host, a new one for each command", "-", "-", ""])
    show("\n".join(plain_table(("alias", "address", "port", "user", "labels"), rows)))
    return 0
