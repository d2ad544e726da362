"""A host reached over SSH: one kept connection, one channel for each command."""

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import paramiko
from fabric import Connection
from paramiko.ssh_exception import SSHException

from opslib.domain.host import HostSettings
from opslib.errors import HostUnreachable
from opslib.hosts.commands import CommandHost
from opslib.hosts.connection import CONNECT_TIMEOUT_S, close_quietly, open_connection
from opslib.hosts.forward import forwarded
from opslib.hosts.pipes import Pipe

_SESSION_WAIT_S = 10.0  # sshd permits ten sessions at once (MaxSessions); commands are short


class ChannelPipe:
    """A `Pipe` over one channel of an SSH transport."""

    def __init__(self, channel: paramiko.Channel, transport: paramiko.Transport) -> None:
        self._channel = channel
        self._transport = transport

    @property
    def is_lost(self) -> bool:
        """Whether the transport under the channel has died."""
        return not self._transport.is_active()

    def read(self, timeout_s: float | None) -> bytes:
        """The next bytes of standard output."""
        self._channel.settimeout(timeout_s)
        return self._channel.recv(65_536)

    def read_error(self, timeout_s: float | None) -> bytes:
        """The next bytes of standard error."""
        self._channel.settimeout(timeout_s)
        return self._channel.recv_stderr(65_536)

    def write(self, data: bytes) -> None:
        """Write all of it to standard input."""
        with _broken_pipe():
            self._channel.sendall(data)

    def end_input(self) -> None:
        """Send the end of standard input."""
        with _broken_pipe():
            self._channel.shutdown_write()

    def wait(self, timeout_s: float) -> int | None:
        """The exit status; -1 when the channel closed without one."""
        if not self._channel.status_event.wait(timeout_s):
            return None
        return self._channel.exit_status

    def close(self) -> None:
        """Close the channel."""
        with suppress(OSError), _broken_pipe():
            self._channel.close()


@contextmanager
def _broken_pipe() -> Iterator[None]:
    """Paramiko's words for a transport that died under a message, as the error that a dead pipe gives."""
    try:
        yield
    except (EOFError, SSHException) as error:
        raise BrokenPipeError(str(error) or "the SSH connection has ended") from error


class SshHost(CommandHost):
    """A machine behind sshd; connects on first use, and once more when the connection has died since."""

    def __init__(self, settings: HostSettings) -> None:
        super().__init__(settings)
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    @property
    def _is_root(self) -> bool:
        return bool(self._connected().user == "root")

    def _start(self, vector: Sequence[str]) -> Pipe:
        channel, transport = self._open_channel(
            lambda transport: transport.open_session(timeout=CONNECT_TIMEOUT_S), patience_s=_SESSION_WAIT_S
        )
        try:
            channel.exec_command(shlex.join(vector).encode("utf-8", "surrogateescape"))
        except (SSHException, OSError, EOFError) as error:
            channel.close()
            raise self._lost() from error
        return ChannelPipe(channel, transport)

    def connect(self) -> None:
        """Connect and log in, unless that has been done."""
        self._connected()

    @contextmanager
    def forward_port(self, remote_port: int) -> Iterator[int]:
        """A loopback port of this machine that reaches `remote_port` on the host's loopback, while open."""

        def reach() -> paramiko.Channel:
            return self._open_channel(
                lambda transport: transport.open_channel(
                    "direct-tcpip", ("127.0.0.1", remote_port), ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
                ),
                patience_s=0.0,
            )[0]

        self._connected()
        with forwarded(reach) as port:
            yield port

    def close(self) -> None:
        """Close the connection; the next call would open a new one."""
        with self._lock:
            if self._connection is not None:
                close_quietly(self._connection)
            self._connection = None

    def _connected(self) -> Connection:
        with self._lock:
            if self._connection is None or not self._connection.is_connected:
                if self._connection is not None:
                    close_quietly(self._connection)
                self._connection = None
                self._connection = open_connection(self._settings)
            return self._connection

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
        close_quietly(connection)

    def _open_channel(
        self, opening: Callable[[paramiko.Transport], paramiko.Channel], *, patience_s: float
    ) -> tuple[paramiko.Channel, paramiko.Transport]:
        # Nothing was sent yet when a channel does not open, so a second connection repeats nothing.
        for is_last in (False, True):
            connection = self._connected()
            try:
                return self._opened(opening, connection.transport, patience_s), connection.transport
            except (SSHException, OSError, EOFError) as error:
                self._drop(connection)
                if is_last:
                    raise HostUnreachable(
                        f"the connection was lost twice ({error})", host=self._settings.alias, hint="ask again later"
                    ) from error
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def _opened(
        self,
        opening: Callable[[paramiko.Transport], paramiko.Channel],
        transport: paramiko.Transport,
        patience_s: float,
    ) -> paramiko.Channel:
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                return opening(transport)
            except SSHException as error:
                # A refusal is a ChannelException, but paramiko may hand it to another thread that waits as well.
                if not transport.is_active() or "Timeout" in str(error):
                    raise
                if time.monotonic() > give_up_at:
                    raise HostUnreachable(
                        f"the host opened no channel: {error}",
                        host=self._settings.alias,
                        hint="see MaxSessions and AllowTcpForwarding in its sshd_config, and whether the port is open",
                    ) from error
                time.sleep(0.1)
