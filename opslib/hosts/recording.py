"""Keep what a host was asked: its argument vectors, or with the answers a whole recording that can be replayed."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from opslib.domain.facts.scope import arguments_in_scope, carried_vectors, in_scope
from opslib.domain.host import CommandResult, Host, HostSettings, LineStream, WriteReceipt
from opslib.domain.redaction import redact_value
from opslib.errors import OpslibError
from opslib.hosts import files
from opslib.hosts.program import program_vector

Entry = dict[str, Any]


class RecordingHost:
    """A host that appends one JSON line for each command: alias, address, kind, argv, sudo, program's main module.

    With `has_results` a line is written when the answer is there, and holds it as well: outputs, lines with their
    seconds, receipts, errors; secrets are redacted. The first line then has the host's settings (`ReplayHost`).
    """

    def __init__(self, host: Host, path: Path, *, has_results: bool = False, secrets: Sequence[str] = ()) -> None:
        self._host = host
        self._path = path
        self._lock = threading.Lock()
        self._has_results = has_results
        self._secrets = tuple(secrets)
        if has_results:
            self._append({"settings": self.settings.model_dump(mode="json", exclude_defaults=True)})

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

    def connect(self) -> None:
        """Connect; nothing is sent that would be recorded."""
        self._host.connect()

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Record, and run."""
        entry = self._entry(argv, sudo=sudo)
        return self._answered(
            {**entry, **({"input_sha256": digest(input)} if input and self._has_results else {})},
            lambda: self._host.run(argv, input=input, timeout_s=timeout_s, sudo=sudo),
        )

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        """Record, and run."""
        return self._answered(
            self._program_entry(main, arguments, sudo=sudo),
            lambda: self._host.run_program(main, arguments, timeout_s=timeout_s, sudo=sudo),
        )

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        """Record, and stream."""
        return self._streamed(self._entry(argv, sudo=sudo), lambda: self._host.stream(argv, sudo=sudo))

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> AbstractContextManager[LineStream]:
        """Record, and stream."""
        return self._streamed(
            self._program_entry(main, arguments, sudo=sudo),
            lambda: self._host.stream_program(main, arguments, sudo=sudo, python=python),
        )

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """Read through recorded commands."""
        return files.read_file(self, path, sudo=sudo)

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """Write through recorded commands; with results as one line, since their names differ each time."""
        if not self._has_results:
            return files.write_file(self, path, content, mode=mode, owner=owner, sudo=sudo)
        entry = {"write": path, "sha256": digest(content), "mode": mode, "owner": owner, "sudo": sudo}
        receipt = self._host.write_file(path, content, mode=mode, owner=owner, sudo=sudo)
        self._append({**entry, "receipt": receipt.model_dump(mode="json")})
        return receipt

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """Not a command, so not recorded."""
        return self._host.forward_port(remote_port)

    def close(self) -> None:
        """Close the recorded host."""
        self._host.close()

    def _entry(self, argv: Sequence[str], *, sudo: bool, program: str | None = None) -> Entry:
        who = {"alias": self.settings.alias, "address": self.settings.address, "kind": self.kind}
        return {**who, "argv": list(in_scope(argv, self.settings.scope)), "sudo": sudo, "program": program}

    def _program_entry(self, main: str, arguments: Mapping[str, object], *, sudo: bool) -> Entry:
        if self._has_results:
            return {**self._entry((), sudo=sudo, program=main), "arguments": dict(arguments)}
        entry = self._entry(program_vector(self.settings.python), sudo=sudo, program=main)
        carried = carried_vectors(main, arguments_in_scope(main, arguments, self.settings.scope))
        return {**entry, "carried": carried} if carried else entry

    def _answered(self, entry: Entry, ask: Callable[[], CommandResult]) -> CommandResult:
        if not self._has_results:
            self._append(entry)
            return ask()
        try:
            result = ask()
        except OpslibError as error:
            self._append({**entry, "error": error_fields(error)})
            raise
        self._append({**entry, "result": result_fields(result)})
        return result

    def _streamed(
        self, entry: Entry, start: Callable[[], AbstractContextManager[LineStream]]
    ) -> AbstractContextManager[LineStream]:
        if not self._has_results:
            self._append(entry)
            return start()
        return self._kept_stream(entry, start)

    @contextmanager
    def _kept_stream(
        self, entry: Entry, start: Callable[[], AbstractContextManager[LineStream]]
    ) -> Iterator[LineStream]:
        kept = _KeptLines()
        try:
            with start() as stream:
                kept.stream = stream
                yield kept
        except OpslibError as error:
            kept.error = kept.error or error
            raise
        finally:
            failed = {"error": error_fields(kept.error)} if kept.error else {}
            self._append({**entry, "lines": kept.lines, **failed})

    def _append(self, entry: Entry) -> None:
        if self._has_results:
            entry = redact_value(entry, self._secrets)
        line = json.dumps(entry, ensure_ascii=True) + "\n"
        with self._lock, self._path.open("a", encoding="ascii") as transcript:
            transcript.write(line)


class _KeptLines:
    """A stream's lines, each kept with the seconds since the stream began."""

    stream: LineStream

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.error: OpslibError | None = None
        self._began_at = time.monotonic()

    def __iter__(self) -> Iterator[bytes]:
        try:
            for line in self.stream:
                self.lines.append((round(time.monotonic() - self._began_at, 3), as_text(line)))
                yield line
        except OpslibError as error:
            self.error = error
            raise

    def close(self) -> None:
        self.stream.close()


def digest(content: bytes) -> str:
    """The SHA-256 of the content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def as_text(data: bytes) -> str:
    """Any bytes as text that JSON can hold and `as_bytes` turns back.

    >>> as_bytes(as_text(bytes(range(256)))) == bytes(range(256))
    True
    """
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The bytes that `as_text` was given."""
    return text.encode("utf-8", "surrogateescape")


def result_fields(result: CommandResult) -> Entry:
    """A command's answer as JSON."""
    outputs = {"stdout": as_text(result.stdout), "stderr": as_text(result.stderr)}
    return {"exit_status": result.exit_status, **outputs, "duration_s": result.duration_s}


def error_fields(error: OpslibError) -> Entry:
    """An error as JSON."""
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
