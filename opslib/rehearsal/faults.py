"""Faults of the host that a scenario asks for: foreign programs, a cut link, what the kernel does and says."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from opslib.rehearsal import processes
from opslib.rehearsal.control import Command
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.layout import Layout
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.scenarios import Before, During, Scenario
from opslib.rehearsal.ssh_server import Links
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_journal import kernel_line

_LISTEN_TRIES, _LISTEN_WAIT_S = 150, 0.02
_NOTIFIED_S = 0.05  # until systemd sees the kernel's counter
_GRAVE = ("Out of memory", "NVRM: Xid")
# NVIDIA driver 580
_OFF_THE_BUS = """\
NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: GPU {bus}.0: GPU has fallen off the bus.
NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
"""
# mm/oom_kill.c; a host of 256 GiB
_OUT_OF_MEMORY = """\
{comm} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={unit},mems_allowed=0,global_oom,\
task_memcg=/system.slice/{unit},task={comm},pid={pid},uid=0
Out of memory: Killed process {pid} ({comm}) total-vm:301989888kB, anon-rss:188743680kB, file-rss:71244kB, \
shmem-rss:12288kB, UID:0 pgtables:372144kB oom_score_adj:0
oom_reaper: reaped process {pid} ({comm}), now anon-rss:0kB, file-rss:70184kB, shmem-rss:12288kB
"""


class Faults:
    """The faults of one scenario: foreign programs from the beginning, and what happens when the journal says so."""

    def __init__(self, layout: Layout, scenario: Scenario, table: processes.ProcessTable, group: str) -> None:
        self._layout = layout
        self._scenario = scenario
        self._table = table
        self._group = group
        self._holders: list[int] = []

    async def begin(self) -> None:
        """Start the foreign programs of the scenario and wait until they are in the way."""
        environment = {**self._layout.environment(), processes.CGROUP_VARIABLE: self._group}
        for before in self._scenario.before:
            argv = _foreign_program(self._layout, before)
            if argv:
                pid = self._table.spawn(
                    argv, environment=environment, directory=Path("/"), on_exit=lambda _status: None
                )
                self._holders += [pid] if before.kind == "hold_gpu_memory" else []
            if before.kind == "listen" and before.port:
                await _wait_for_listener(self._layout.loopback, before.port)

    def arm(self, manager: Manager, links: Links) -> None:
        """Let the rest happen when its time comes."""
        journal, waiting = manager.journal, list(self._scenario.during)

        def on_line() -> None:
            text = journal.entries[-1].text("MESSAGE")
            for fault in [fault for fault in waiting if re.search(fault.when, text)]:
                waiting.remove(fault)
                asyncio.get_running_loop().call_later(fault.after_s, self._happen, fault, manager, links)

        if waiting:
            journal.subscribe(on_line)

    def _happen(self, fault: During, manager: Manager, links: Links) -> None:
        if fault.kind == "release_gpu_memory":
            processes.kill(self._holders, signal.SIGTERM)
        elif fault.kind == "cut_link":
            links.cut(fault.for_s)
        elif fault.kind == "lose_gpu":
            (self._layout.ledger_dir / f"lost-{fault.gpu}").touch()
            _say(manager.journal, _OFF_THE_BUS, bus=f"0000:{0x11 + 0x10 * fault.gpu:02X}:00")
        else:
            _kill_for_memory(manager, fault.process)


def _kill_for_memory(manager: Manager, name: str) -> None:
    """What the kernel does when main memory is full: one process of a unit is killed, and systemd is told."""
    for service in manager.loaded():
        victims = [pid for pid in service.processes() if processes.command_name(pid) == name[:15]]
        if victims:
            _say(manager.journal, _OUT_OF_MEMORY, pid=victims[-1], comm=name[:15], unit=service.name)
            processes.kill(victims[-1:], signal.SIGKILL)
            asyncio.get_running_loop().call_later(_NOTIFIED_S, service.oom_killed)
            return


def _say(journal: JournalStore, text: str, **words: object) -> None:
    for line in text.format(**words).splitlines():
        kernel_line(journal, line, priority=3 if line.startswith(_GRAVE) else 4)


def boot_lines(journal: JournalStore, scenario: Scenario) -> None:
    """What a kernel says at boot: without a line nobody could tell a quiet kernel from one that may not be read."""
    kernel_line(journal, f"Linux version {os.uname().release} (a rehearsal host)", priority=5)
    kernel_line(journal, f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {scenario.gpus['driver_version']}")


def fault_commands(journal: JournalStore, links: Links, clock: Path) -> dict[str, Command]:
    """Commands that only a drill sends to the daemon.

    `kernel-line PRIORITY MESSAGE`, `kill SIGNAL PID...`, `cut-link SECONDS`, `forget-journal`,
    `set-clock SECONDS` (by which it is set; programs read it from the file `clock`).
    """

    async def write_kernel_line(argv: Sequence[str], _terminal: Terminal) -> int:
        kernel_line(journal, argv[1], priority=int(argv[0]))
        return 0

    async def send_signal(argv: Sequence[str], _terminal: Terminal) -> int:
        processes.kill([int(pid) for pid in argv[1:]], signal.Signals[argv[0]])
        return 0

    async def cut_link(argv: Sequence[str], _terminal: Terminal) -> int:
        links.cut(float(argv[0]))
        return 0

    async def forget_journal(_argv: Sequence[str], _terminal: Terminal) -> int:
        journal.forget()
        return 0

    async def set_clock(argv: Sequence[str], _terminal: Terminal) -> int:
        _set_clock(journal, clock, float(argv[0]))
        return 0

    return {
        "forget-journal": forget_journal,
        "set-clock": set_clock,
        "kernel-line": write_kernel_line,
        "kill": send_signal,
        "cut-link": cut_link,
    }


def _set_clock(journal: JournalStore, clock: Path, by_s: float) -> None:
    journal.clock_set_by_s += by_s
    clock.write_text(str(journal.clock_set_by_s))


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
