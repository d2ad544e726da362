"""One practice host that stands: its SSH server, unit manager, journal and faults, within a daemon's event loop."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from opslib.domain.host import HostSettings
from opslib.rehearsal import processes
from opslib.rehearsal.control import Command, ControlServer, socket_place
from opslib.rehearsal.daemon import say_ready, stop_signals, until_stopped
from opslib.rehearsal.faults import Faults, boot_lines, fault_commands
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.journalctl import journalctl
from opslib.rehearsal.layout import Layout, lay_out, pin
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.power import CLOCK_VARIABLE, Power
from opslib.rehearsal.scenarios import Scenario
from opslib.rehearsal.ssh_server import USER, SessionSettings, start_ssh_server
from opslib.rehearsal.systemctl import systemctl
from opslib.rehearsal.systemd_analyze import systemd_analyze


@dataclass(frozen=True)
class Standing:
    """What a host is to be: where it lies, what goes wrong on it, under which name it is reached."""

    root: Path
    scenario: Scenario
    alias: str
    mark: str  # its processes' control groups lie below this name
    labels: tuple[str, ...] = ()
    time_factor: float = 1.0
    checkpoint: Path | None = None  # whose files it shares; None: it gets its own

    def settings(self, layout: Layout, port: int) -> HostSettings:
        """How it is reached."""
        return HostSettings(
            alias=self.alias,
            address="127.0.0.1",
            port=port,
            user=USER,
            identity_file=str(layout.identity_file),
            known_hosts_file=str(layout.known_hosts),
            labels=(*self.labels, f"scenario={self.scenario.name}"),
            sudo=True,
            unit_dir=str(layout.unit_dir),
            state_dir=str(self.root / "var/lib/opslib"),
            models_dir=str(self.root / "srv/models"),
            vllm=str(layout.vllm),
            is_rehearsal=True,
        )


async def stand_until_stopped(hosts: Iterable[Standing], document: Callable[[list[dict[str, object]]], object]) -> None:
    """Let hosts stand in this process until standard input ends or a signal asks them to stop.

    Signals are taken before the first of `hosts` is made. `document` gives the ready line of what each one says.
    """
    stop, table = stop_signals(), processes.ProcessTable()
    table.watch(asyncio.get_running_loop())
    async with AsyncExitStack() as standing:
        ready = [await standing.enter_async_context(standing_host(wanted, table)) for wanted in hosts]
        say_ready(document(ready))
        await until_stopped(stop)


@asynccontextmanager
async def standing_host(wanted: Standing, table: processes.ProcessTable) -> AsyncIterator[dict[str, object]]:
    """The host, while the block lasts; yields what its ready line says: settings and loopback address."""
    root, scenario = wanted.root, wanted.scenario
    layout = lay_out(root, scenario, wanted.checkpoint)
    journal = JournalStore(root / "var/log/journal.jsonl", hostname=os.uname().nodename)
    boot_lines(journal, scenario)
    factor = wanted.time_factor * scenario.unit_time_factor
    manager = Manager(
        layout.unit_dir, journal, table, layout.environment(), group_prefix=wanted.mark, time_factor=factor
    )
    clock = root / "run/clock"
    environment: dict[str, str] = {
        CLOCK_VARIABLE: str(clock),
        **layout.session_environment(),
        processes.CGROUP_VARIABLE: f"{wanted.mark}/user.slice",
    }
    sessions = SessionSettings(root / "home/ops", environment, layout.loopback, table)
    with socket_place(root) as place:
        power = Power(manager, sessions.links, environment, wanted.mark, scenario)
        drills = {**fault_commands(journal, sessions.links, clock), **power.commands()}
        control = ControlServer(place, {**_programs(manager, journal), **drills})
        await control.start()
        (root / "run/control").write_text(str(control.path))
        acceptor = await start_ssh_server(sessions, layout.host_key, layout.authorized_keys)
        pin(layout, acceptor.get_port())
        faults = Faults(layout, scenario, table, f"{wanted.mark}/faults")
        await faults.begin()
        faults.arm(manager, sessions.links)
        settings = wanted.settings(layout, acceptor.get_port())
        try:
            yield {"settings": settings.model_dump(mode="json"), "loopback": layout.loopback}
        finally:
            acceptor.close()
            control.close()
            manager.power_off()  # none is started again while other hosts end
            processes.kill(processes.members_below(wanted.mark), signal.SIGKILL)
            journal.close()


def _programs(manager: Manager, journal: JournalStore) -> dict[str, Command]:
    """What the host's own programs send to the daemon."""
    return {
        "systemctl": lambda argv, terminal: systemctl(manager, argv, terminal),
        "journalctl": lambda argv, terminal: journalctl(journal, argv, terminal),
        "systemd-analyze": systemd_analyze,
    }
