"""Which argument vectors were sent to which kind of host, kept to compare practice with the real thing."""

import hashlib
import json
import posixpath
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

from opslib.domain.host import CommandResult, Host, HostSettings, LineStream, WriteReceipt
from opslib.hosts import files
from opslib.hosts.program import program_vector

_SUBCOMMANDS = frozenset({"systemctl", "systemd-analyze", "loginctl", "ip", "git", "pip"})
_FORMATS = frozenset({"-o", "--output", "-p", "--property", "--format", "-t", "--type"})  # their value is the question
_ASSIGNMENT = re.compile(r"(--[A-Za-z][\w-]*|[A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERED_OPTION = re.compile(r"(-[A-Za-z])\d+")
_WORD = re.compile(r"[a-z][a-z-]*")
_OPERATORS = frozenset({"+", "!", "(", ")", "--", "-", "-a", "-o"})


def vector_shape(argv: Sequence[str]) -> tuple[str, ...]:
    """The vector with its values (paths, numbers, unit names, ids) replaced: program, subcommand and options stay.

    >>> vector_shape(["systemctl", "show", "vllm-minimax", "--property=NRestarts,Result"])
    ('systemctl', 'show', '<value>', '--property=NRestarts,Result')
    >>> vector_shape(["/usr/bin/journalctl", "-u", "x.service", "-o", "json", "-n", "5", "_PID=7"])
    ('journalctl', '-u', '<value>', '-o', 'json', '-n', '<number>', '_PID=<number>')
    """
    if not argv:
        return ()
    program = posixpath.basename(argv[0])
    shape = [program]
    has_subcommand = program not in _SUBCOMMANDS
    for previous, argument in pairwise(argv):
        if previous in ("-c", "-lc") and program not in _SUBCOMMANDS:
            shape.append(_script_shape(argument))
        elif not has_subcommand and previous not in _FORMATS and _WORD.fullmatch(argument):
            shape.append(argument)
            has_subcommand = True
        else:
            shape.append(_argument_shape(previous, argument))
    return tuple(shape)


def _argument_shape(previous: str, argument: str) -> str:
    if argument in _OPERATORS or previous in _FORMATS:
        return argument
    if assignment := _ASSIGNMENT.fullmatch(argument):
        name, value = assignment.groups()
        return argument if name in _FORMATS else f"{name}={_value_shape(value)}"
    if numbered := _NUMBERED_OPTION.fullmatch(argument):
        return f"{numbered[1]}<number>"
    if argument.startswith("-") and not argument.lstrip("-").isdigit():
        return argument
    return _value_shape(argument)


def _script_shape(script: str) -> str:
    """A digest of the script without its paths and numbers."""
    plain = re.sub(r"/[\w./-]+|\d+(\.\d+)?", "_", script)
    return f"<script {hashlib.sha256(plain.encode('utf-8', 'replace')).hexdigest()[:8]}>"


def _value_shape(value: str) -> str:
    if value.startswith("/"):
        return "<path>"
    return "<number>" if re.fullmatch(r"-?[\d.]+", value) else "<value>"


class RecordingHost:
    """A host that appends one JSON line for each command: alias, kind, argv, sudo, and the program's main module."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._lock = threading.Lock()

    @property
    def settings(self) -> HostSettings:
        """The recorded host's own settings."""
        return self._host.settings

    @property
    def kind(self) -> str:
        """rehearsal, local or real."""
        if self.settings.is_rehearsal:
            return "rehearsal"
        return "local" if self.settings.address == "local" else "real"

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Record, then run."""
        self._record(argv, sudo=sudo)
        return self._host.run(argv, input=input, timeout_s=timeout_s, sudo=sudo)

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        """Record, then run."""
        self._record(program_vector(self.settings.python), sudo=sudo, program=main)
        return self._host.run_program(main, arguments, timeout_s=timeout_s, sudo=sudo)

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        """Record, then stream."""
        self._record(argv, sudo=sudo)
        return self._host.stream(argv, sudo=sudo)

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False
    ) -> AbstractContextManager[LineStream]:
        """Record, then stream."""
        self._record(program_vector(self.settings.python), sudo=sudo, program=main)
        return self._host.stream_program(main, arguments, sudo=sudo)

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """Read through recorded commands."""
        return files.read_file(self, path, sudo=sudo)

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """Write through recorded commands."""
        return files.write_file(self, path, content, mode=mode, owner=owner, sudo=sudo)

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """Not a command, so not recorded."""
        return self._host.forward_port(remote_port)

    def close(self) -> None:
        """Close the recorded host."""
        self._host.close()

    def _record(self, argv: Sequence[str], *, sudo: bool, program: str | None = None) -> None:
        entry = {"alias": self.settings.alias, "kind": self.kind, "argv": list(argv), "sudo": sudo, "program": program}
        line = json.dumps(entry, ensure_ascii=True) + "\n"
        with self._lock, self._path.open("a", encoding="ascii") as transcript:
            transcript.write(line)
