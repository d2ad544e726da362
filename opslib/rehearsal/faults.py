"""Faults of the host that a scenario asks for: foreign programs that hold a port or GPU memory, kernel lines."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from opslib.rehearsal import processes
from opslib.rehearsal.control import Command
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.layout import Layout
from opslib.rehearsal.scenarios import Before, Scenario
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_journal import kernel_line

_LISTEN_TRIES, _LISTEN_WAIT_S = 150, 0.02


async def begin_faults(layout: Layout, scenario: Scenario, table: processes.ProcessTable, group: str) -> None:
    """Start the foreign programs of a scenario and wait until they are in the way."""
    environment = {**layout.environment(), processes.CGROUP_VARIABLE: group}
    for before in scenario.before:
        argv = _foreign_program(layout, before)
        if argv:
            table.spawn(argv, environment=environment, directory=Path("/"), on_exit=lambda _status: None)
        if before.kind == "listen" and before.port:
            await _wait_for_listener(layout.loopback, before.port)


def boot_lines(journal: JournalStore, scenario: Scenario) -> None:
    """What a kernel says at boot: without a line nobody could tell a quiet kernel from one that may not be read."""
    kernel_line(journal, f"Linux version {os.uname().release} (a rehearsal host)", priority=5)
    kernel_line(journal, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {scenario.gpus['driver_version']}")


def fault_commands(journal: JournalStore) -> dict[str, Command]:
    """Commands that only a drill sends to the daemon: `kernel-line PRIORITY MESSAGE`, `kill SIGNAL PID...`."""

    async def write_kernel_line(argv: Sequence[str], _terminal: Terminal) -> int:
        kernel_line(journal, argv[1], priority=int(argv[0]))
        return 0

    async def send_signal(argv: Sequence[str], _terminal: Terminal) -> int:
        processes.kill([int(pid) for pid in argv[1:]], signal.Signals[argv[0]])
        return 0

    return {"kernel-line": write_kernel_line, "kill": send_signal}


def _foreign_program(layout: Layout, before: Before) -> list[str]:
    programs = layout.root / "opt/vllm/bin"
    if before.kind == "listen":
        path = programs / (before.program or "listen")
        if not path.exists():  # ss and ps show a script under the name by which it was called
            path.symlink_to("listen")
        return [str(path), str(before.port)]
    if before.kind == "hold_gpu_memory":
        return [str(programs / "hold-gpu-memory"), str(before.gib), *map(str, before.gpus)]
    return []


async def _wait_for_listener(address: str, port: int) -> None:
    for _ in range(_LISTEN_TRIES):
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0):
            return
        await asyncio.sleep(_LISTEN_WAIT_S)
