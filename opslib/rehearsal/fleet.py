"""Many practice hosts in one daemon: each with its own root, port, keys and units, and a hosts.toml that names them."""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from opslib.domain.host import HostSettings
from opslib.errors import BadParameter
from opslib.rehearsal import processes
from opslib.rehearsal.checkpoint import write_checkpoint
from opslib.rehearsal.daemon import Daemon, say_ready, start_daemon, stop_signals, until_stopped
from opslib.rehearsal.scenarios import Scenario, load_scenario
from opslib.rehearsal.server import PracticeHost
from opslib.rehearsal.standing import Standing, standing_host

LABEL = "practice"  # every host of the fleet has it
MOST_HOSTS = 100
_READY_TIMEOUT_S = 20.0
_READY_PER_HOST_S = 2.0


@dataclass(frozen=True)
class RehearsalFleet:
    """Practice hosts that stand, practice-1 first; they end with `close`, this process, or the `with` block."""

    hosts: tuple[PracticeHost, ...]
    inventory: Path  # a hosts.toml: what $OPSLIB_HOSTS is set to
    root: Path
    _daemon: Daemon

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts' names in the inventory."""
        return tuple(host.settings.alias for host in self.hosts)

    @property
    def process_id(self) -> int:
        """The one process that serves all hosts."""
        return self._daemon.process.pid

    def close(self) -> None:
        """End all hosts with everything that runs on them; safe to call twice."""
        self._daemon.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    temporary = None if root else Path(tempfile.mkdtemp(prefix="opslib-fleet-"))
    base = (root or temporary or Path()).resolve()
    arguments = ["--root", str(base), "--scenarios", json.dumps(scenarios), "--time-factor", str(time_factor)]
    arguments += ["--remove-root"] if temporary else []
    timeout_s = _READY_TIMEOUT_S + _READY_PER_HOST_S * n_hosts
    daemon, ready = start_daemon("opslib.rehearsal.fleet", arguments, timeout_s=timeout_s, close_timeout_s=timeout_s)
    hosts = tuple(
        PracticeHost(HostSettings.model_validate(each["settings"]), scenario, _root(base, number), each["loopback"])
        for number, (scenario, each) in enumerate(zip(scenarios, ready, strict=True), 1)
    )
    inventory = base / "hosts.toml"
    inventory.write_text(inventory_text([host.settings for host in hosts]), "utf-8")
    return RehearsalFleet(hosts, inventory, base, daemon)


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
    stop, table = stop_signals(), processes.ProcessTable()
    table.watch(asyncio.get_running_loop())
    checkpoint = base / "checkpoint"
    write_checkpoint(checkpoint)
    async with AsyncExitStack() as hosts:
        ready = []
        for number, scenario in enumerate(scenarios, 1):
            wanted = Standing(
                root=_root(base, number),
                scenario=scenario,
                alias=f"practice-{number}",
                mark=f"rehearsal-{os.getpid()}-{number}",
                labels=(LABEL,),
                time_factor=time_factor,
                checkpoint=checkpoint,
            )
            wanted.root.mkdir(parents=True, exist_ok=True)
            ready.append(await hosts.enter_async_context(standing_host(wanted, table)))
        say_ready(ready)
        await until_stopped(stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the ready line on standard output is one JSON document, a list with an object per host."""
    parser = argparse.ArgumentParser(prog="opslib.rehearsal.fleet")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--scenarios", type=json.loads, required=True)
    parser.add_argument("--time-factor", type=float, default=1.0)
    parser.add_argument("--remove-root", action="store_true", help="the root is temporary: leave nothing behind")
    arguments = parser.parse_args(argv)
    arguments.root.mkdir(parents=True, exist_ok=True)
    try:
        scenarios = [load_scenario(name) for name in arguments.scenarios]
        asyncio.run(serve(arguments.root.resolve(), scenarios, arguments.time_factor))
    finally:
        if arguments.remove_root:
            shutil.rmtree(arguments.root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
