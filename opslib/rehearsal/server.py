"""The rehearsal host as one daemon: SSH server, unit manager, journal; `start_rehearsal` runs it as a child process."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opslib.domain.host import HostSettings
from opslib.rehearsal.control import send_request
from opslib.rehearsal.daemon import ALIAS, DaemonOwner, daemon_arguments, run_daemon, start_daemon
from opslib.rehearsal.scenarios import DEFAULT_SCENARIO, Scenario, load_scenario

_READY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class PracticeHost:
    """A practice host that stands somewhere: how it is reached, and what may be done to it from outside."""

    settings: HostSettings
    scenario: str
    root: Path
    loopback: str

    def drill(self, *argv: str) -> None:
        """Do something to the host from outside.

        `kernel-line PRIORITY MESSAGE`, `kill SIGNAL PID...`, `cut-link SECONDS`, `forget-journal`, `set-clock SECONDS`
        or `reboot SECONDS`.
        """
        send_request(Path((self.root / "run/control").read_text()), argv)


@dataclass(frozen=True)
class RehearsalHost(DaemonOwner, PracticeHost):
    """A running rehearsal host, alone in its daemon."""


def start_rehearsal(
    scenario: str = DEFAULT_SCENARIO, *, root: Path | None = None, time_factor: float = 1.0
) -> RehearsalHost:
    """Start a rehearsal host and say how to reach it; without `root` it lies in a temporary directory.

    `time_factor` divides the unit manager's waits (RestartSec= and the like); the engine scales its own.
    Raises UnknownName for an unknown scenario, CouldNotFindOut when the host does not come up.
    """
    load_scenario(scenario)
    arguments = ["--scenario", scenario, "--time-factor", str(time_factor)]
    daemon, base, ready = start_daemon("opslib.rehearsal.server", arguments, root=root, timeout_s=_READY_TIMEOUT_S)
    settings = HostSettings.model_validate(ready["settings"])
    return RehearsalHost(settings, scenario, base, ready["loopback"], daemon=daemon)


async def serve(root: Path, scenario: Scenario, time_factor: float) -> None:
    """Run the host until standard input ends or a signal asks it to stop."""
    from opslib.rehearsal.standing import Standing, stand_until_stopped  # noqa: PLC0415 - asyncssh, for the daemon alone

    wanted = Standing(root, scenario, ALIAS, f"rehearsal-{os.getpid()}", time_factor=time_factor)
    await stand_until_stopped([wanted], lambda ready: ready[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the ready line on standard output is one JSON document."""
    parser = daemon_arguments("opslib.rehearsal.server")
    parser.add_argument("--scenario", default=DEFAULT_SCENARIO)
    given = parser.parse_args(argv)
    return run_daemon(given, lambda root: serve(root, load_scenario(given.scenario), given.time_factor))


if __name__ == "__main__":
    sys.exit(main())
