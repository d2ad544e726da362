"""The processes of one unit: started, found again wherever they went, signalled, and what they still have to say."""

import signal
from collections.abc import Callable

from opslib.rehearsal import processes
from opslib.rehearsal.rate_limit import RateLimit
from opslib.rehearsal.spawning import ExecStatus, Surroundings, UnitIdentity, spawn_command
from opslib.rehearsal.unit_config import UnitConfig
from opslib.rehearsal.unit_journal import OutputStream
from opslib.rehearsal.unit_semantics import Exit
from opslib.rehearsal.unit_syntax import ExecCommand


class UnitProcesses:
    """Main process, control process and all others in the unit's control group."""

    def __init__(self, around: Surroundings, unit: str) -> None:
        self.main_pid = 0
        self.control_pid = 0
        self.exec_failed = False  # of the command started last
        self.command_status: dict[ExecCommand, ExecStatus] = {}
        self._around = around
        self._unit = unit
        self._is_forgotten = False
        self._streams: list[OutputStream] = []
        self._limit = RateLimit()  # journald counts by unit, whichever start it is

    @property
    def control_group(self) -> str:
        """The name that marks all processes of this unit."""
        return f"{self._around.group_prefix}/system.slice/{self._unit}"

    def alive(self) -> tuple[int, ...]:
        """Living processes of the unit, ascending."""
        own = {pid for pid in (self.main_pid, self.control_pid) if pid and processes.is_alive(pid)}
        return tuple(sorted(own.union(self.group())))

    def group(self) -> tuple[int, ...]:
        """Living processes that carry the unit's mark, ascending."""
        return processes.members(self.control_group)

    def is_empty(self) -> bool:
        """Whether nothing of the unit runs and both its own processes have been reaped."""
        return not (self.main_pid or self.control_pid or self.group())

    def spawn(
        self,
        config: UnitConfig,
        command: ExecCommand,
        invocation_id: str,
        on_exit: Callable[[ExecCommand, Exit], None],
    ) -> ExecStatus:
        """Start a command of the unit; OSError where an environment file is missing."""
        identity = UnitIdentity(self._unit, invocation_id, self.control_group, self._limit)

        def ended(end: Exit) -> None:
            if not self._is_forgotten:
                on_exit(command, end)

        spawned = spawn_command(self._around, config, command, identity, ended)
        self._streams = [old for old in self._streams if old.is_open] + [spawned.stream]
        self.exec_failed = spawned.exec_failed
        self.command_status[command] = spawned.status
        return spawned.status

    def targets(self, kill_mode: str, *, is_kill: bool) -> tuple[int, ...]:
        """Whom a stop signals under a KillMode= (systemd.kill(5)): the unit's own processes, then the others."""
        if kill_mode == "none":
            return ()
        own = tuple(pid for pid in (self.main_pid, self.control_pid) if pid)
        has_group = kill_mode == "control-group" or (kill_mode == "mixed" and is_kill)
        return own + tuple(pid for pid in self.alive() if has_group and pid not in own)

    def kill_all(self) -> None:
        """End every process at once."""
        processes.kill(self.alive(), signal.SIGKILL)

    def forget(self) -> None:
        """Tell nobody any more how they end: the host has lost its power."""
        self._is_forgotten = True

    def drain(self) -> None:
        """Take into the journal what the processes have written so far."""
        for stream in self._streams:
            stream.drain()
