"""The rehearsal host's power switch: everything on it ends at once, and it boots anew under another boot id."""

import asyncio
import signal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from opslib.rehearsal import processes
from opslib.rehearsal.control import Command
from opslib.rehearsal.faults import boot_lines
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.scenarios import Scenario
from opslib.rehearsal.ssh_server import Links
from opslib.rehearsal.terminal import Terminal

CLOCK_VARIABLE = "OPSLIB_CLOCK"  # names the file that holds by how many seconds the host's clock was set
BOOT_ID_VARIABLE = "OPSLIB_BOOT_ID"  # what a program on the host takes for the kernel's boot id


@dataclass(frozen=True)
class Power:
    """What loses its power: units, links, and every process below `mark`; logins get the boot id in `environment`."""

    manager: Manager
    links: Links
    environment: dict[str, str]
    mark: str
    scenario: Scenario

    def commands(self) -> dict[str, Command]:
        """`reboot SECONDS`: the power is off for so long; answers once the host is up again."""
        return {"reboot": self._reboot}

    async def _reboot(self, argv: Sequence[str], _terminal: Terminal) -> int:
        down_s = float(argv[0])
        self.links.cut(down_s)
        self.manager.power_off()
        processes.kill(processes.members_below(self.mark), signal.SIGKILL)
        await asyncio.sleep(down_s)
        boot_id = uuid.uuid4()
        self.manager.journal.boot_id = boot_id.hex
        self.environment[BOOT_ID_VARIABLE] = str(boot_id)
        boot_lines(self.manager.journal, self.scenario)
        self.manager.boot()
        return 0
