"""The rehearsal host as one daemon: SSH server, unit manager, journal; `start_rehearsal` runs it as a child process."""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from opslib.domain.host import HostSettings
from opslib.errors import CouldNotFindOut
from opslib.rehearsal import processes
from opslib.rehearsal.control import ControlServer, send_request
from opslib.rehearsal.faults import Faults, boot_lines, fault_commands
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.journalctl import journalctl
from opslib.rehearsal.layout import Layout, lay_out, pin
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.scenarios import Scenario, load_scenario
from opslib.rehearsal.ssh_server import USER, SessionSettings, start_ssh_server
from opslib.rehearsal.systemctl import systemctl
from opslib.rehearsal.systemd_analyze import systemd_analyze

ALIAS = "rehearsal"
DEFAULT_SCENARIO = "sampler-oom"
_READY_TIMEOUT_S = 20.0
_CLOSE_TIMEOUT_S = 10.0
_PARENT_CHECK_S = 0.5


@dataclass
class RehearsalHost:
    """A running rehearsal host; ends with `close`, with this process, or with its `with` block."""

    settings: HostSettings
    scenario: str
    root: Path
    loopback: str
    _process: "subprocess.Popen[bytes]"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def drill(self, *argv: str) -> None:
        """Do something to the host from outside: `kernel-line PRIORITY MESSAGE` or `kill SIGNAL PID...`."""
        send_request(Path((self.root / "run/control").read_text()), argv)

    def close(self) -> None:
        """End the host with everything that runs on it; safe to call twice."""
        with self._lock:
            if self._process.stdin and not self._process.stdin.closed:
                self._process.stdin.close()
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()

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
    argv = [sys.executable, "-m", "opslib.rehearsal.server", "--root", str(base), "--scenario", scenario]
    argv += ["--time-factor", str(time_factor), *(["--remove-root"] if temporary else [])]
    # A session of its own: an interrupt (of a terminal, of a kernel) is for the runbook, not for its host.
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    timer = threading.Timer(_READY_TIMEOUT_S, process.kill)
    timer.start()
    line = process.stdout.readline() if process.stdout else b""
    timer.cancel()
    if not line:
        process.kill()
        raise CouldNotFindOut(f"The rehearsal host did not start (exit status {process.wait()}).", host=ALIAS)
    ready = json.loads(line)
    settings = HostSettings.model_validate(ready["settings"])
    return RehearsalHost(settings, scenario, base, ready["loopback"], process)


def _settings(layout: Layout, port: int, scenario: str) -> HostSettings:
    root = layout.root
    return HostSettings(
        alias=ALIAS,
        address="127.0.0.1",
        port=port,
        user=USER,
        identity_file=str(layout.identity_file),
        known_hosts_file=str(layout.known_hosts),
        labels=(f"scenario={scenario}",),
        sudo=True,
        unit_dir=str(layout.unit_dir),
        state_dir=str(root / "var/lib/opslib"),
        models_dir=str(root / "srv/models"),
        vllm=str(layout.vllm),
        is_rehearsal=True,
    )


async def serve(root: Path, scenario: Scenario, time_factor: float) -> None:
    """Run the host until standard input ends or a signal asks it to stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    layout = lay_out(root, scenario)
    table = processes.ProcessTable()
    table.watch(loop)
    journal = JournalStore(root / "var/log/journal.jsonl", hostname=os.uname().nodename)
    boot_lines(journal, scenario)
    mark = f"rehearsal-{os.getpid()}"
    factor = time_factor * scenario.unit_time_factor
    manager = Manager(layout.unit_dir, journal, table, layout.environment(), group_prefix=mark, time_factor=factor)
    with tempfile.TemporaryDirectory(prefix="opslib-") as short:
        control = ControlServer(
            Path(short) / "control",
            {
                "systemctl": lambda argv, terminal: systemctl(manager, argv, terminal),
                "journalctl": lambda argv, terminal: journalctl(journal, argv, terminal),
                "systemd-analyze": systemd_analyze,
                **fault_commands(journal),
            },
        )
        await control.start()
        (root / "run/control").write_text(str(control.path))
        environment = {**layout.session_environment(), processes.CGROUP_VARIABLE: f"{mark}/user.slice"}
        sessions = SessionSettings(root / "home/ops", environment, layout.loopback, table)
        acceptor = await start_ssh_server(sessions, layout.host_key, layout.authorized_keys)
        pin(layout, acceptor.get_port())
        faults = Faults(layout, scenario, table, f"{mark}/faults")
        await faults.begin()
        faults.arm(manager, sessions.links)
        settings = _settings(layout, acceptor.get_port(), scenario.name)
        ready = {"settings": settings.model_dump(mode="json"), "loopback": layout.loopback}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await _until_stopped(loop, stop)
        acceptor.close()
        control.close()
        manager.kill_all()
        processes.kill(processes.members_below(mark), signal.SIGKILL)
        journal.close()


async def _until_stopped(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def on_input() -> None:
        if not os.read(0, 4096):
            stop.set()

    async def watch_parent() -> None:  # PR_SET_PDEATHSIG would tell of the thread that started us, not of its process
        parent = os.getppid()
        while os.getppid() == parent:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(_PARENT_CHECK_S)
        stop.set()

    watching = asyncio.ensure_future(watch_parent())
    with contextlib.suppress(PermissionError):  # standard input is a file: only signals stop the host then
        loop.add_reader(0, on_input)
    await stop.wait()
    watching.cancel()
    with contextlib.suppress(OSError):
        loop.remove_reader(0)


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
