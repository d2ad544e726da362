"""What every machine that runs commands has in common: all of `domain.host.Host` over one started command."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from opslib.domain.facts.scope import arguments_in_scope, in_scope
from opslib.domain.host import CommandResult, HostSettings, WriteReceipt
from opslib.errors import HostUnreachable, PrivilegeRefused, UnexpectedAnswer
from opslib.hosts import files
from opslib.hosts.pipes import LINK_TIMEOUT_S, Exchange, Lines, Pipe, exchange
from opslib.hosts.program import program_input, program_vector
from opslib.hosts.vectors import (
    bounded_vector,
    checked_vector,
    english_vector,
    raise_for_python,
    raise_for_sudo,
    raise_for_timeout,
    sudo_vector,
)

_LINK_MARGIN_S = 6.0  # the host needs up to 2 s to end a tree; later than this the link is dead, not the command


class CommandHost(ABC):
    """A `Host` made from one operation: start an argument vector."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings

    @property
    def settings(self) -> HostSettings:
        """The inventory entry that this host was opened from."""
        return self._settings

    @property
    @abstractmethod
    def _is_root(self) -> bool:
        """Whether the login needs no sudo."""

    @abstractmethod
    def _start(self, vector: Sequence[str]) -> Pipe:
        """Start exactly this vector; raises HostUnreachable when it was certainly not started."""

    @abstractmethod
    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """A loopback port of this machine that reaches `remote_port` on the host's loopback, while open."""

    def connect(self) -> None:  # noqa: B027 - only some have something to open
        """Nothing is to be opened before the first command."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - the standard library's own name for it
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Run one command and wait; see `Host.run`."""
        vector = in_scope(checked_vector(argv), self._settings.scope)
        return self._run(vector, input or b"", timeout_s=timeout_s, sudo=sudo, is_program=False)

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        """Run the module `opslib.onhost.<main>` on the host's own Python; see `Host.run_program`."""
        given = self._program_input(main, arguments)
        self._refuse_unlisted(main, is_sudo=self._needs_sudo(sudo=sudo))
        return self._run(program_vector(self._settings.python), given, timeout_s=timeout_s, sudo=sudo, is_program=True)

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> Lines:
        """Start a command under supervision and hand over its lines; see `Host.stream`."""
        return self.stream_program("supervise", {"argv": checked_vector(argv)}, sudo=sudo)

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> Lines:
        """Start the module `opslib.onhost.<main>` and hand over its lines; see `Host.stream_program`."""
        given = self._program_input(main, arguments)
        is_sudo = self._needs_sudo(sudo=sudo)
        self._refuse_unlisted(main, is_sudo=is_sudo)
        vector = english_vector(program_vector(python or self._settings.python))

        def explain(exit_status: int | None, error_text: str, is_lost: bool) -> None:
            if is_lost:
                raise self._lost()
            self._raise_for_refusal(exit_status or 0, error_text, is_sudo=is_sudo, is_program=True)

        return Lines(self._start(sudo_vector(vector) if is_sudo else vector), given, explain)

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """The file's bytes, or None where there is no such file."""
        return files.read_file(self, path, sudo=sudo)

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """Replace the file atomically; see `Host.write_file`."""
        return files.write_file(self, path, content, mode=mode, owner=owner, sudo=sudo)

    @abstractmethod
    def close(self) -> None:
        """Give up the connection, if there is one."""

    def _needs_sudo(self, *, sudo: bool) -> bool:
        return sudo and self._settings.has_sudo and not self._is_root

    def _refuse_unlisted(self, program: str, *, is_sudo: bool) -> None:
        if is_sudo and self._settings.sudo == "listed":
            raise PrivilegeRefused(
                f'sudo refused: the program {program} is in no sudoers list (sudo = "listed")',
                host=self._settings.alias,
                hint="ask without sudo; the group systemd-journal may read the journal",
            )

    def _run(
        self, argv: Sequence[str], given: bytes, *, timeout_s: float, sudo: bool, is_program: bool
    ) -> CommandResult:
        is_sudo = self._needs_sudo(sudo=sudo)
        pipe = self._start(self._vector(argv, timeout_s, is_sudo=is_sudo))
        began_at = time.monotonic()
        got = exchange(pipe, given, deadline=began_at + timeout_s + _LINK_MARGIN_S, is_held_open=is_program)
        result = CommandResult(
            argv=tuple(argv),
            exit_status=self._exit_status(got, pipe, timeout_s),
            stdout=bytes(got.stdout),
            stderr=bytes(got.stderr),
            duration_s=time.monotonic() - began_at,
        )
        raise_for_timeout(self._settings, result, timeout_s)
        self._raise_for_refusal(result.exit_status, result.error_text, is_sudo=is_sudo, is_program=is_program)
        return result

    def _program_input(self, main: str, arguments: Mapping[str, object]) -> bytes:
        scoped = arguments_in_scope(main, arguments, self._settings.scope)
        return program_input(main, scoped, link_timeout_s=LINK_TIMEOUT_S)

    def _vector(self, argv: Sequence[str], timeout_s: float, *, is_sudo: bool) -> list[str]:
        if is_sudo and self._settings.sudo == "listed":  # its time is bounded by TIMEOUT in the sudoers file
            return sudo_vector(checked_vector(argv))
        vector = bounded_vector(argv, timeout_s)
        return sudo_vector(vector) if is_sudo else vector

    def _exit_status(self, got: Exchange, pipe: Pipe, timeout_s: float) -> int:
        if got.exit_status is None:
            raise HostUnreachable(
                f"no answer {_LINK_MARGIN_S:g} s after the {timeout_s:g} s that the command had",
                host=self._settings.alias,
                hint="the link is probably dead; the host ends the command by itself. Ask again",
            )
        if got.exit_status >= 0:
            return got.exit_status
        if pipe.is_lost:
            raise self._lost()
        raise UnexpectedAnswer("the command ended without an exit status (killed?)", host=self._settings.alias)

    def _lost(self) -> HostUnreachable:
        return HostUnreachable(
            "the connection was lost while a command ran; whether it finished is not known",
            host=self._settings.alias,
            hint="ask the host again before repeating anything",
        )

    def _raise_for_refusal(self, exit_status: int, error_text: str, *, is_sudo: bool, is_program: bool) -> None:
        if is_sudo:
            raise_for_sudo(self._settings, exit_status, error_text)
        if is_program:
            raise_for_python(self._settings, exit_status, error_text)
