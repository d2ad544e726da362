"""A host as a run with nobody watching uses it: reads are asked again, changes never; a dry run changes nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from opslib.domain.host import CommandResult, Host, HostSettings, LineStream, WriteReceipt
from opslib.domain.reading import READING_PROGRAMS, is_reading
from opslib.errors import DryRunEnds, HostUnreachable

_LONGEST_WAIT_S = 30.0
Answer = TypeVar("Answer")


class CarefulHost:
    """Hands everything on to `host`; `on_retry` is told of each question that is asked again.

    A read of a host that can't be reached is asked again up to `retries` times, after 1, 2, 4, ... seconds. What may
    change something is sent once: nobody knows whether the host has done it. In a dry run it isn't sent: DryRunEnds.
    """

    def __init__(self, host: Host, *, retries: int, is_dry_run: bool, on_retry: Callable[[str], None]) -> None:
        self._host = host
        self._retries = retries
        self._is_dry_run = is_dry_run
        self._on_retry = on_retry

    @property
    def settings(self) -> HostSettings:
        """The host's own settings."""
        return self._host.settings

    def connect(self) -> None:
        """Connect, as the host itself does."""
        self._host.connect()

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Run one command."""
        is_read = is_reading(argv)
        self._allow(" ".join(argv), is_read=is_read)
        return self._asked(is_read, lambda: self._host.run(argv, input=input, timeout_s=timeout_s, sudo=sudo))

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        """Run a program of ours."""
        is_read = main in READING_PROGRAMS
        self._allow(f"the program {main}", is_read=is_read)
        return self._asked(
            is_read, lambda: self._host.run_program(main, self._given(main, arguments), timeout_s=timeout_s, sudo=sudo)
        )

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        """Stream a command's lines; asked once, whoever reads them knows where to go on."""
        self._allow(" ".join(argv), is_read=is_reading(argv))
        return self._host.stream(argv, sudo=sudo)

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> AbstractContextManager[LineStream]:
        """Stream a program's lines; asked once."""
        self._allow(f"the program {main}", is_read=main in READING_PROGRAMS)
        return self._host.stream_program(main, self._given(main, arguments), sudo=sudo, python=python)

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """Read a file."""
        return self._asked(True, lambda: self._host.read_file(path, sudo=sudo))

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """Write a file."""
        self._allow(f"a new {path}", is_read=False)
        return self._host.write_file(path, content, mode=mode, owner=owner, sudo=sudo)

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """Forward a port."""
        return self._host.forward_port(remote_port)

    def close(self) -> None:
        """Close the host."""
        self._host.close()

    def _allow(self, what: str, *, is_read: bool) -> None:
        if self._is_dry_run and not is_read:
            raise DryRunEnds(f"dry run, nothing was changed: next would be {what[:200]}", host=self.settings.alias)

    def _given(self, main: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """In a dry run not even receipts of what was hashed are written."""
        return {**arguments, "no_receipts": True} if self._is_dry_run and main == "verify" else arguments

    def _asked(self, is_read: bool, ask: Callable[[], Answer]) -> Answer:
        for attempt in range(self._retries if is_read else 0):
            try:
                return ask()
            except HostUnreachable as error:
                wait_s = min(2.0**attempt, _LONGEST_WAIT_S)
                self._on_retry(f"{error.message}; asked again after {wait_s:g} s ({attempt + 1} of {self._retries})")
                time.sleep(wait_s)
        return ask()
