"""Many practice hosts in one daemon: each with its own root, port, keys and units, and a hosts.toml that names them."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opslib.domain.host import HostSettings
from opslib.errors import BadParameter
from opslib.rehearsal.checkpoint import write_checkpoint
from opslib.rehearsal.daemon import DaemonOwner, daemon_arguments, run_daemon, start_daemon
from opslib.rehearsal.scenarios import Scenario, load_scenario
from opslib.rehearsal.server import PracticeHost

LABEL = "practice"  # every host of the fleet has it
MOST_HOSTS = 100
_READY_TIMEOUT_S = 20.0
_READY_PER_HOST_S = 2.0


@dataclass(frozen=True)
class RehearsalFleet(DaemonOwner):
    """Practice hosts that stand in one daemon, practice-1 first."""

    hosts: tuple[PracticeHost, ...]
    inventory: Path  # a hosts.toml: what $OPSLIB_HOSTS is set to
    root: Path

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts' names in the inventory."""
        return tuple(host.settings.alias for host in self.hosts)


def start_fleet(
    n_hosts: int,
    scenario_on: Mapping[int, str] | None = None,
    *,
    default: str = "healthy",
    root: Path | None = None,
    time_factor: float = 1.0,
) -> RehearsalFleet:
    """Start `n_hosts` practice hosts, practice-1 to practice-n; `scenario_on` says what goes wrong on which (from 1).

    The checkpoint's files are hard links to one copy, but on a host whose scenario changes them: replace them, never
    write into them. Raises BadParameter for a number that can't be, UnknownName for an unknown scenario.
    """
    scenarios = _scenarios(n_hosts, scenario_on or {}, default)
    arguments = ["--scenarios", json.dumps(scenarios), "--time-factor", str(time_factor)]
    timeout_s = _READY_TIMEOUT_S + _READY_PER_HOST_S * n_hosts
    daemon, base, ready = start_daemon(
        "opslib.rehearsal.fleet", arguments, root=root, timeout_s=timeout_s, close_timeout_s=timeout_s
    )
    hosts = tuple(
        PracticeHost(HostSettings.model_validate(each["settings"]), scenario, _root(base, number), each["loopback"])
        for number, (scenario, each) in enumerate(zip(scenarios, ready, strict=True), 1)
    )
    inventory = base / "hosts.toml"
    inventory.write_text(inventory_text([host.settings for host in hosts]), "utf-8")
    return RehearsalFleet(hosts, inventory, base, daemon=daemon)


def _scenarios(n_hosts: int, scenario_on: Mapping[int, str], default: str) -> list[str]:
    if not 1 <= n_hosts <= MOST_HOSTS:
        raise BadParameter(f"{n_hosts} practice hosts: give a number from 1 to {MOST_HOSTS}")
    for number in scenario_on:
        if not 1 <= number <= n_hosts:
            raise BadParameter(f"there is no host {number} among {n_hosts}: they are numbered from 1")
    scenarios = [scenario_on.get(number, default) for number in range(1, n_hosts + 1)]
    for scenario in dict.fromkeys(scenarios):
        load_scenario(scenario)
    return scenarios


def inventory_text(settings: Sequence[HostSettings]) -> str:
    """The hosts as a hosts.toml.

    >>> print(inventory_text([HostSettings(alias="a", address="::1", labels=("x",))]), end="")
    [hosts.a]
    address = "::1"
    labels = ["x"]
    """
    tables = []
    for host in settings:
        given = host.model_dump(mode="json", exclude_defaults=True, exclude={"alias"})
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]  # such JSON is TOML as well
        tables.append("\n".join([f"[hosts.{host.alias}]", *lines, ""]))
    return "\n".join(tables)


def _root(base: Path, number: int) -> Path:
    return base / str(number)


async def serve(base: Path, scenarios: Sequence[Scenario], time_factor: float) -> None:
    """Run the hosts until standard input ends or a signal asks them to stop."""
    from opslib.rehearsal.standing import Standing, stand_until_stopped  # noqa: PLC0415 - asyncssh, for the daemon alone

    def wanted() -> Iterator[Standing]:
        checkpoint = base / "checkpoint"
        write_checkpoint(checkpoint)
        for number, scenario in enumerate(scenarios, 1):
            root = _root(base, number)
            root.mkdir(parents=True, exist_ok=True)
            mark = f"rehearsal-{os.getpid()}-{number}"
            yield Standing(root, scenario, f"practice-{number}", mark, (LABEL,), time_factor, checkpoint)

    await stand_until_stopped(wanted(), lambda ready: ready)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the ready line on standard output is one JSON document, a list with an object per host."""
    parser = daemon_arguments("opslib.rehearsal.fleet")
    parser.add_argument("--scenarios", type=json.loads, required=True)
    given = parser.parse_args(argv)
    scenarios = given.scenarios
    return run_daemon(given, lambda root: serve(root, [load_scenario(each) for each in scenarios], given.time_factor))


if __name__ == "__main__":
    sys.exit(main())
