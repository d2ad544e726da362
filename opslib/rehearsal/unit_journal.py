"""What a unit leaves in the journal: its processes' lines, read from a socket, and systemd's own lines about it."""

import array
import asyncio
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field

from opslib.rehearsal import processes
from opslib.rehearsal.journal_store import FieldValue, JournalStore
from opslib.rehearsal.rate_limit import RateLimit

# systemd 252's own lines: name -> (MESSAGE_ID, CODE_FILE, CODE_FUNC, PRIORITY); the wording is where it is said.
_CATALOGUE = {
    "starting": ("7d4958e842da4a758f6c1cdc7b36dcc5", "src/core/job.c", "job_emit_start_message", 6),
    "started": ("39f53479d3a045ac8e11786248231fbf", "src/core/job.c", "job_emit_done_message", 6),
    "start-failed": ("be02cf6855d2428ba40df7e9d022f03d", "src/core/job.c", "job_emit_done_message", 3),
    "stopping": ("de5b426a63be47a7b6ac3eaac82e2f6f", "src/core/job.c", "job_emit_start_message", 6),
    "stopped": ("9d1aaa27d60140bd96365438aad20286", "src/core/job.c", "job_emit_done_message", 6),
    "exited": ("98e322203f7a4ed290d09fe03c09fe15", "src/core/unit.c", "unit_log_process_exit", 5),
    "killed": ("98e322203f7a4ed290d09fe03c09fe15", "src/core/unit.c", "unit_log_process_exit", 4),
    "failure": ("d9b373ed55a64feb8242e02dbe79a49c", "src/core/unit.c", "unit_log_failure", 4),
    "success": ("7ad2d189f7e94e70a38c781354912448", "src/core/unit.c", "unit_log_success", 6),
    "restart": ("5eb03494b6584870a536b337290809b3", "src/core/service.c", "service_enter_restart", 6),
    "spawn": ("641257651c1b4ec9a8624d7a40a9e1e7", "src/core/execute.c", "exec_spawn", 3),
    "locate": ("641257651c1b4ec9a8624d7a40a9e1e7", "src/core/execute.c", "exec_child", 6),
    "start-limit": ("", "src/core/unit.c", "unit_test_start_limit", 4),
    "timeout": ("", "src/core/service.c", "service_dispatch_timer", 4),
    "kill": ("", "src/core/unit.c", "log_kill", 5),
    "oom": ("fe6faa94e7774663a0da52717891d8ef", "src/core/unit.c", "unit_check_oom", 5),
    "task-failed": ("", "src/core/service.c", "service_enter_start", 4),
    "environment": ("", "src/core/execute.c", "exec_spawn", 3),
    "left-over": ("", "src/core/unit.c", "unit_log_leftover_process_stop", 4),
    "notice": ("", "src/core/manager.c", "manager_reload", 5),
}
_MANAGER = {
    "_TRANSPORT": "journal",
    "_PID": "1",
    "_UID": "0",
    "_GID": "0",
    "_COMM": "systemd",
    "_EXE": "/usr/lib/systemd/systemd",
    "_CMDLINE": "/usr/lib/systemd/systemd",
    "_SYSTEMD_CGROUP": "/init.scope",
    "_SYSTEMD_UNIT": "init.scope",
    "_SYSTEMD_SLICE": "-.slice",
    "SYSLOG_FACILITY": "3",
    "SYSLOG_IDENTIFIER": "systemd",
    "TID": "1",
}
_DRAIN_READS = 64  # a process that writes without end must not hold up the manager
_LINE_MAX = 48 * 1024  # journald's LineMax=
_CREDENTIALS = struct.Struct("3i")


def manager_line(
    journal: JournalStore, kind: str, message: str, *, unit: str = "", invocation_id: str = "", **fields: str
) -> None:
    """Write one of systemd's own lines; `fields` come on top of what its kind says."""
    message_id, code_file, code_func, priority = _CATALOGUE[kind]
    entry: dict[str, FieldValue] = {**_MANAGER, "PRIORITY": str(priority), "MESSAGE": message}
    entry |= {
        "CODE_FILE": code_file,
        "CODE_FUNC": code_func,
        "_SOURCE_REALTIME_TIMESTAMP": str(int(journal.now_s() * 1e6)),
    }
    optional = {"MESSAGE_ID": message_id, "UNIT": unit, "INVOCATION_ID": invocation_id, **fields}
    journal.append(entry | {name: value for name, value in optional.items() if value})


def kernel_line(journal: JournalStore, message: str, *, priority: int = 4) -> None:
    """Write a kernel line (`journalctl -k`), as a scenario's fault does."""
    journal.append(
        {
            "_TRANSPORT": "kernel",
            "PRIORITY": str(priority),
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "_SOURCE_MONOTONIC_TIMESTAMP": str(time.monotonic_ns() // 1000),
            "MESSAGE": message,
        }
    )


def dropped_line(journal: JournalStore, unit: str, n: int) -> None:
    """Write journald's own note that it dropped entries of a unit (SD_MESSAGE_JOURNAL_DROPPED)."""
    journal.append(
        {
            "_TRANSPORT": "driver",
            "_UID": "0",
            "_COMM": "systemd-journal",
            "_SYSTEMD_UNIT": "systemd-journald.service",
            "SYSLOG_IDENTIFIER": "systemd-journald",
            "SYSLOG_FACILITY": "3",
            "PRIORITY": "6",
            "MESSAGE_ID": "a596d6fe7bfa4994828e72309e95d61e",
            "MESSAGE": f"Suppressed {n} messages from {unit}",
            "N_DROPPED": str(n),
            "OBJECT_SYSTEMD_UNIT": unit,
        }
    )


@dataclass(frozen=True)
class StreamOwner:
    """Whose lines a stream carries."""

    unit: str
    invocation_id: str
    identifier: str
    limit: RateLimit = field(default_factory=RateLimit)


class OutputStream:
    """The journal's end of a unit's standard output: a socket, so that each line's writer is known."""

    def __init__(self, journal: JournalStore, owner: StreamOwner) -> None:
        self._journal = journal
        self._owner = owner
        self._stream_id = secrets.token_hex(16)
        self._pending = b""
        self._pid = 0
        self._known: dict[int, dict[str, str]] = {}
        self._socket, self.child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self.child_end.shutdown(socket.SHUT_RD)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self.drain, 1)

    @property
    def is_open(self) -> bool:
        """Whether somebody may still write."""
        return self._socket.fileno() >= 0

    @property
    def journal_stream(self) -> str:
        """Device and inode of the child's end, as $JOURNAL_STREAM tells it."""
        status = os.fstat(self.child_end.fileno())
        return f"{status.st_dev}:{status.st_ino}"

    def drain(self, at_most: int = _DRAIN_READS) -> None:
        """Read what is there now; ends the stream when its last writer has closed it."""
        for _ in range(at_most):
            if not self.is_open:
                return
            try:
                data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self.close()
                return
            self._take(data, _sender(ancillary) or self._pid)

    def close(self) -> None:
        """Write what is left of an unfinished line and close the socket."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._flush("eof")

    def _take(self, data: bytes, pid: int) -> None:
        if pid != self._pid:
            self._flush("pid-change")
            self._pid = pid
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._write(line)
        while len(self._pending) >= _LINE_MAX:
            line, self._pending = self._pending[:_LINE_MAX], self._pending[_LINE_MAX:]
            self._write(line, "line-max")

    def _flush(self, reason: str) -> None:
        line, self._pending = self._pending, b""
        self._write(line, reason)

    def _write(self, line: bytes, line_break: str = "") -> None:
        priority, message = _level_prefix(line.rstrip(b" \t\n\r"))
        if not message:  # journald writes no empty lines
            return
        n_dropped = self._owner.limit.take(time.monotonic())
        if n_dropped is None:
            return
        if n_dropped:
            dropped_line(self._journal, self._owner.unit, n_dropped)
        unit = self._owner.unit
        fields: dict[str, FieldValue] = {
            "_TRANSPORT": "stdout",
            "_STREAM_ID": self._stream_id,
            "PRIORITY": str(priority),
            "SYSLOG_FACILITY": "3",
            "SYSLOG_IDENTIFIER": self._owner.identifier,
            "_UID": str(os.getuid()),
            "_GID": str(os.getgid()),
            "_SYSTEMD_UNIT": unit,
            "_SYSTEMD_CGROUP": f"/system.slice/{unit}",
            "_SYSTEMD_SLICE": "system.slice",
            "_SYSTEMD_INVOCATION_ID": self._owner.invocation_id,
            **self._writer(),
            "MESSAGE": message,
        }
        if line_break:
            fields["_LINE_BREAK"] = line_break
        self._journal.append(fields)

    def _writer(self) -> dict[str, str]:
        pid = self._pid
        seen = {
            "_PID": str(pid),
            "_COMM": processes.command_name(pid),
            "_EXE": processes.executable(pid),
            "_CMDLINE": processes.command_line(pid),
        }
        known = self._known.setdefault(pid, {})
        known |= {name: value for name, value in seen.items() if value}
        return known


def _level_prefix(line: bytes) -> tuple[int, bytes]:
    # SyslogLevelPrefix=yes: a line may start with "<N>", its priority (sd-daemon(3)).
    if len(line) >= 3 and line[:1] == b"<" and line[2:3] == b">" and line[1:2] in b"01234567":
        return int(line[1:2]), line[3:]
    return 6, line


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
            return pid
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i", data[: len(data) - len(data) % 4])
            for descriptor in descriptors:
                os.close(descriptor)
    return 0
