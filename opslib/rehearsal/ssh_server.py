"""The rehearsal host's SSH server: public-key login, real `/bin/sh -c`, forwarding to its own loopback."""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from opslib.rehearsal import processes
from opslib.rehearsal.unit_semantics import signal_name

USER = "ops"
_LOOPBACK_NAMES = {"127.0.0.1", "localhost", "::1"}
_CHUNK = 1 << 16
_EXIT_UNKNOWN = 255


class Links:
    """The SSH connections that are open now, so that a scenario can cut them."""

    def __init__(self) -> None:
        self._open: set[asyncssh.SSHServerConnection] = set()
        self._refused_until = 0.0

    def add(self, connection: asyncssh.SSHServerConnection) -> None:
        """A new connection; refused at once while the link is down."""
        if time.monotonic() < self._refused_until:
            connection.abort()
        self._open.add(connection)

    def remove(self, connection: asyncssh.SSHServerConnection) -> None:
        """It ended."""
        self._open.discard(connection)

    def cut(self, for_s: float) -> None:
        """End all connections without a word, and let none come about for so many seconds."""
        self._refused_until = time.monotonic() + for_s
        for connection in tuple(self._open):
            connection.abort()


@dataclass(frozen=True)
class SessionSettings:
    """What a login session gets: home directory, environment, control-group mark."""

    home: Path
    environment: Mapping[str, str]
    loopback: str  # the address that stands for the host's 127.0.0.1
    table: processes.ProcessTable
    links: Links = field(default_factory=Links)


class _Server(asyncssh.SSHServer):
    """Only the user `ops` with the made key; only connections to the host's own loopback are forwarded."""

    def __init__(self, settings: SessionSettings, authorized_keys: Path) -> None:
        self._settings = settings
        self._authorized_keys = authorized_keys
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._settings.links.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._connection:
            self._settings.links.remove(self._connection)

    def begin_auth(self, username: str) -> bool:
        if username == USER and self._connection:
            self._connection.set_authorized_keys(str(self._authorized_keys))
        return True

    def public_key_auth_supported(self) -> bool:
        return True  # for an unknown user too: it has no keys

    def password_auth_supported(self) -> bool:
        return False

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        del orig_host, orig_port
        if dest_host not in _LOOPBACK_NAMES:
            reason = "a rehearsal host forwards to its own loopback only"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, reason)
        return _forward(self._settings.loopback, dest_port)


def _forward(address: str, port: int) -> Any:
    async def relay(reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]) -> None:
        near_reader, near_writer = await asyncio.open_connection(address, port)
        await asyncio.gather(_pump(reader, near_writer), _pump(near_reader, writer))

    return relay


async def start_ssh_server(settings: SessionSettings, host_key: Path, authorized_keys: Path) -> asyncssh.SSHAcceptor:
    """Listen on a free port of 127.0.0.1."""

    async def session(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await _run_session(process, settings)

    return await asyncssh.create_server(
        lambda: _Server(settings, authorized_keys),
        "127.0.0.1",
        0,
        server_host_keys=[str(host_key)],
        process_factory=session,
        encoding=None,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        compression_algs=None,
        line_editor=False,
        keepalive_interval=0,
    )


async def _run_session(process: asyncssh.SSHServerProcess[bytes], settings: SessionSettings) -> None:
    """One exec or shell request, as sshd without a terminal: the command lives on when the channel closes."""
    if process.subsystem:
        process.stderr.write(b"subsystem request failed on channel 0\n")
        process.exit(_EXIT_UNKNOWN)
        return
    argv = ["/bin/sh", "-c", process.command] if process.command else ["/bin/sh"]
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    input_fd, output_fd, error_fd = _spawn(argv, process, settings, ended)
    feeding = asyncio.ensure_future(_feed(process, input_fd))
    try:
        await asyncio.gather(_drain(output_fd, process.stdout), _drain(error_fd, process.stderr))
        status = await ended
    finally:
        feeding.cancel()
    with contextlib.suppress(OSError, asyncssh.Error):
        if os.WIFSIGNALED(status):
            process.exit_with_signal(signal_name(os.WTERMSIG(status)), os.WCOREDUMP(status))
        else:
            process.exit(os.WEXITSTATUS(status))


def _spawn(
    argv: list[str],
    process: asyncssh.SSHServerProcess[bytes],
    settings: SessionSettings,
    ended: asyncio.Future[int],
) -> tuple[int, int, int]:
    client_host, client_port = process.get_extra_info("peername")[:2]
    server_host, server_port = process.get_extra_info("sockname")[:2]
    environment = {
        **settings.environment,
        "SSH_CLIENT": f"{client_host} {client_port} {server_port}",
        "SSH_CONNECTION": f"{client_host} {client_port} {server_host} {server_port}",
    }
    (stdin, input_fd), (output_fd, stdout), (error_fd, stderr) = os.pipe(), os.pipe(), os.pipe()
    settings.table.spawn(
        argv,
        environment=environment,
        directory=settings.home,
        on_exit=ended.set_result,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    for descriptor in (stdin, stdout, stderr):
        os.close(descriptor)
    return input_fd, output_fd, error_fd


async def _feed(process: asyncssh.SSHServerProcess[bytes], descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(descriptor, "wb", buffering=0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        await _pump(process.stdin, writer)
    finally:
        transport.close()


async def _drain(descriptor: int, writer: asyncssh.SSHWriter[bytes]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop, limit=_CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        await _pump(reader, writer, close=False)
    finally:
        transport.close()  # a command that writes on gets SIGPIPE


async def _pump(reader: Any, writer: Any, *, close: bool = True) -> None:
    """Copy until the end of input or until nobody takes the output any more."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    if close:
        with contextlib.suppress(OSError, asyncssh.Error):
            writer.close()
