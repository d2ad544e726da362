"""The rehearsal host as one daemon: SSH server, unit manager, journal; `start_rehearsal` runs it as a child process."""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from opslib.domain.host import HostSettings
from opslib.rehearsal import processes
from opslib.rehearsal.control import send_request
from opslib.rehearsal.daemon import ALIAS, Daemon, say_ready, start_daemon, stop_signals, until_stopped
from opslib.rehearsal.scenarios import Scenario, load_scenario
from opslib.rehearsal.standing import Standing, standing_host

DEFAULT_SCENARIO = "sampler-oom"
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
class RehearsalHost(PracticeHost):
    """A running rehearsal host; ends with `close`, with this process, or with its `with` block."""

    _daemon: Daemon

    @property
    def _process(self) -> "subprocess.Popen[bytes]":
        return self._daemon.process

    def close(self) -> None:
        """End the host with everything that runs on it; safe to call twice."""
        self._daemon.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_rehearsal(
    scenario: str = DEFAULT_SCENARIO, *, root: Path | None = None, time_factor: float = 1.0
) -> RehearsalHost:
    """Start a rehearsal host and say how to reach it; without `root` it lies in a temporary directory.

    `time_factor` divides the unit manager's waits (RestartSec= and the like); the engine scales its own.
    Raises UnknownName for an unknown scenario, CouldNotFindOut when the host does not come up.
    """
    load_scenario(scenario)
    temporary = None if root else Path(tempfile.mkdtemp(prefix="opslib-rehearsal-"))
    base = (root or temporary or Path()).resolve()
    arguments = ["--root", str(base), "--scenario", scenario, "--time-factor", str(time_factor)]
    arguments += ["--remove-root"] if temporary else []
    daemon, ready = start_daemon("opslib.rehearsal.server", arguments, timeout_s=_READY_TIMEOUT_S)
    return RehearsalHost(
        HostSettings.model_validate(ready["settings"]), scenario, base, ready["loopback"], _daemon=daemon
    )


async def serve(root: Path, scenario: Scenario, time_factor: float) -> None:
    """Run the host until standard input ends or a signal asks it to stop."""
    stop, table = stop_signals(), processes.ProcessTable()
    table.watch(asyncio.get_running_loop())
    wanted = Standing(root, scenario, ALIAS, f"rehearsal-{os.getpid()}", time_factor=time_factor)
    async with standing_host(wanted, table) as ready:
        say_ready(ready)
        await until_stopped(stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; the ready line on standard output is one JSON document."""
    parser = argparse.ArgumentParser(prog="opslib.rehearsal.server")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--scenario", default=DEFAULT_SCENARIO)
    parser.add_argument("--time-factor", type=float, default=1.0)
    parser.add_argument("--remove-root", action="store_true", help="the root is temporary: leave nothing behind")
    arguments = parser.parse_args(argv)
    arguments.root.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(serve(arguments.root.resolve(), load_scenario(arguments.scenario), arguments.time_factor))
    finally:
        if arguments.remove_root:
            shutil.rmtree(arguments.root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
