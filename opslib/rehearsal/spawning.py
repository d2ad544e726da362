"""One command of a unit brought to life: environment, output into the journal, and the ways in which exec fails."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opslib.rehearsal import processes
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.rate_limit import RateLimit
from opslib.rehearsal.unit_config import UnitConfig, environment_of
from opslib.rehearsal.unit_journal import OutputStream, StreamOwner, manager_line
from opslib.rehearsal.unit_semantics import Exit, exit_of
from opslib.rehearsal.unit_syntax import ExecCommand, expand_variables


@dataclass
class ExecStatus:
    """When a command ran last, as which process, and how it ended."""

    pid: int = 0
    start_at_s: float = 0.0
    exit_at_s: float = 0.0
    start_monotonic_us: int = 0
    exit_monotonic_us: int = 0
    end: Exit | None = None


@dataclass(frozen=True)
class Surroundings:
    """What every service shares: journal, processes, environment, clock factor."""

    journal: JournalStore
    table: processes.ProcessTable
    environment: Mapping[str, str]
    group_prefix: str  # makes control groups of several rehearsal hosts differ
    time_factor: float = 1.0


@dataclass(frozen=True)
class UnitIdentity:
    """Which start of which unit a process belongs to."""

    unit: str
    invocation_id: str
    control_group: str
    limit: RateLimit = field(default_factory=RateLimit)


@dataclass(frozen=True)
class Spawned:
    """A started command; `exec_failed` where the program could not be executed and only its exit status is left."""

    status: ExecStatus
    stream: OutputStream
    exec_failed: bool


def spawn_command(
    around: Surroundings,
    config: UnitConfig,
    command: ExecCommand,
    identity: UnitIdentity,
    on_exit: Callable[[Exit], None],
) -> Spawned:
    """Start one command in a session of its own; OSError where an environment file is missing.

    A program that cannot be executed leaves systemd's lines in the journal and a process with systemd's exit status.
    """
    identity.limit.set(interval_s=config.log_rate_limit_interval_s, burst=config.log_rate_limit_burst)
    from_unit = _environment_of(around.journal, config, identity)
    identifier = config.syslog_identifier or Path(command.path).name
    stream = OutputStream(
        around.journal, StreamOwner(identity.unit, identity.invocation_id, identifier, identity.limit)
    )
    environment = {
        **around.environment,
        "INVOCATION_ID": identity.invocation_id,
        "JOURNAL_STREAM": stream.journal_stream,
        processes.CGROUP_VARIABLE: identity.control_group,
        **from_unit,
    }
    status = ExecStatus(start_at_s=around.journal.now_s(), start_monotonic_us=time.monotonic_ns() // 1000)

    def ended(wait_status: int) -> None:
        status.end = exit_of(wait_status)
        status.exit_at_s, status.exit_monotonic_us = around.journal.now_s(), time.monotonic_ns() // 1000
        on_exit(status.end)

    def begin(vector: list[str], where: Path) -> int:
        output = stream.child_end.fileno()
        return around.table.spawn(
            vector, environment=environment, directory=where, on_exit=ended, stdout=output, stderr=output
        )

    argv = expand_variables(command.argv, environment)
    program = shutil.which(command.path, path=environment["PATH"]) or command.path
    directory = Path(config.working_directory.lstrip("-") or "/")
    exec_failed = False
    with stream.child_end:
        try:
            status.pid = begin([program, *argv[1:]], directory)
        except OSError as error:
            exec_failed = True
            exit_status = _log_failure(around.journal, command, identity, error, is_directory=directory.is_dir())
            status.pid = begin(["/bin/sh", "-c", f"exit {exit_status}"], Path("/"))
    return Spawned(status, stream, exec_failed)


def _environment_of(journal: JournalStore, config: UnitConfig, identity: UnitIdentity) -> dict[str, str]:
    try:
        return environment_of(config)
    except OSError as error:
        text = f"{identity.unit}: Failed to load environment files: {os.strerror(error.errno or 0)}"
        manager_line(journal, "environment", text, unit=identity.unit, invocation_id=identity.invocation_id)
        raise


def _log_failure(
    journal: JournalStore, command: ExecCommand, identity: UnitIdentity, error: OSError, *, is_directory: bool
) -> int:
    step, exit_status = ("EXEC", 203) if is_directory else ("CHDIR", 200)
    number = error.errno or errno.ENOENT
    reason, unit = os.strerror(number), identity.unit
    lines = [("spawn", f"{unit}: Failed at step {step} spawning {command.path}: {reason}")]
    if step == "EXEC" and number == errno.ENOENT:
        lines.insert(0, ("locate", f"{unit}: Failed to locate executable {command.path}: {reason}"))
    elif step == "CHDIR":
        lines.insert(0, ("spawn", f"{unit}: Changing to the requested working directory failed: {reason}"))
    for kind, text in lines:
        manager_line(
            journal,
            kind,
            text,
            unit=unit,
            invocation_id=identity.invocation_id,
            SYSLOG_IDENTIFIER=f"({Path(command.path).name[-8:]})",
            _SYSTEMD_UNIT=unit,
            _SYSTEMD_INVOCATION_ID=identity.invocation_id,
            ERRNO=str(number),
            EXECUTABLE=command.path,
        )
    return exit_status
