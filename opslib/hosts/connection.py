"""A fabric connection that trusts no host key it was not told of, with foreign exceptions turned into ours."""

import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import paramiko
from fabric import Connection
from paramiko.hostkeys import HostKeys
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    ChannelException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from opslib.domain.host import HostSettings
from opslib.errors import (
    BadParameter,
    CouldNotFindOut,
    HostKeyRefused,
    HostUnreachable,
    OpslibError,
    PrivilegeRefused,
    reason_of,
)

CONNECT_TIMEOUT_S = 10
KEEPALIVE_S = 15
_UNACKNOWLEDGED_MS = 45_000  # three keepalives without an answer from the other kernel: the link is dead

# Paramiko's own thread logs tracebacks of what is raised here anyway.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Refuse(paramiko.RejectPolicy):
    """Refuses an unknown host key, and says which key it was and how to accept it."""

    def __init__(self, settings: HostSettings, accepted_in: Path) -> None:
        self._settings = settings
        self._accepted_in = accepted_in

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:  # noqa: ARG002
        raise HostKeyRefused(
            f"the host key of {hostname} is not known: {key.get_name()} {fingerprint(key)}",
            host=self._settings.alias,
            hint="compare the fingerprint with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` there), "
            f"then `{_scan(hostname, key)} >> {self._accepted_in}`",
        )


def fingerprint(key: paramiko.PKey) -> str:
    """The key's fingerprint as ssh prints it (`SHA256:...`)."""
    return str(key.fingerprint)


def open_connection(settings: HostSettings) -> Connection:
    """Connect and authenticate, through the jump hosts that `proxy_jump` or ~/.ssh/config names.

    Raises HostKeyRefused, HostUnreachable, PrivilegeRefused (the login was refused), BadParameter (no identity file).
    """
    credentials = _credentials(settings)
    try:
        connection = Connection(
            settings.address,
            user=settings.user,
            port=settings.port,
            connect_timeout=CONNECT_TIMEOUT_S,
            connect_kwargs=credentials,
            gateway=_jump_hosts(settings, credentials),
        )
    except OSError as error:  # fabric looks for its own files in the home directory
        raise CouldNotFindOut(f"{error.filename} can't be read: {reason_of(error)}", hint="see $HOME") from error
    for hop in reversed(_hops(connection)):  # one after the other, so that the one that fails is known
        _trust_only_known_keys(hop, settings)
        try:
            hop.open()
        except OpslibError:
            close_quietly(connection)
            raise
        except (SSHException, OSError, EOFError) as error:
            close_quietly(connection)
            raise _translated(error, hop, settings) from error
        _keep_alive(hop.transport)
    return connection


def close_quietly(connection: Connection) -> None:
    """Close the connection and its jump hosts, whatever state they are in."""
    for hop in _hops(connection):
        with suppress(Exception):
            hop.client.close()


def _hops(connection: Connection) -> list[Connection]:
    """The connection, then the jump hosts that it goes through, the nearest to this machine last."""
    hops, hop = [], connection
    while isinstance(hop, Connection):
        hops.append(hop)
        hop = hop.gateway
    return hops


def _jump_hosts(settings: HostSettings, credentials: dict[str, object]) -> Connection | None:
    hop = None
    for place in settings.proxy_jump.split(",") if settings.proxy_jump else ():
        hop = Connection(place, gateway=hop, connect_timeout=CONNECT_TIMEOUT_S, connect_kwargs=credentials)
    return hop


def _credentials(settings: HostSettings) -> dict[str, object]:
    limits: dict[str, object] = {"banner_timeout": CONNECT_TIMEOUT_S, "auth_timeout": 2 * CONNECT_TIMEOUT_S}
    if settings.identity_file is None:
        return limits
    identity = Path(settings.identity_file).expanduser()
    if not identity.is_file():
        raise BadParameter(f"identity_file {identity} does not exist", host=settings.alias, hint="see hosts.toml")
    return {**limits, "key_filename": str(identity), "look_for_keys": False, "allow_agent": False}


def _known_hosts_files(connection: Connection, settings: HostSettings) -> list[Path]:
    if settings.known_hosts_file:
        return [Path(settings.known_hosts_file).expanduser()]
    configured = str(connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts")).split()
    return [*(Path(name).expanduser() for name in configured), Path("/etc/ssh/ssh_known_hosts")]


def _trust_only_known_keys(connection: Connection, settings: HostSettings) -> None:
    # fabric sets AutoAddPolicy in its constructor and loads no known hosts: both are put right before open().
    known: HostKeys = connection.client.get_host_keys()
    paths = _known_hosts_files(connection, settings)
    for path in paths:
        if path.is_file():
            known.load(str(path))
    connection.client.set_missing_host_key_policy(_Refuse(settings, paths[0]))


def _keep_alive(transport: paramiko.Transport) -> None:
    transport.set_keepalive(KEEPALIVE_S)
    if isinstance(transport.sock, socket.socket):
        # A command is several small packets; Nagle's algorithm would hold each back for the last one's answer.
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def _translated(error: Exception, connection: Connection, settings: HostSettings) -> OpslibError:
    alias, where = settings.alias, f"{connection.host} port {connection.port}"
    if isinstance(error, BadHostKeyException):
        return _changed_key(error, connection, settings)
    if isinstance(error, PasswordRequiredException):
        return PrivilegeRefused(
            "the private key is protected by a passphrase", host=alias, hint="`ssh-add` it to the agent first"
        )
    if isinstance(error, AuthenticationException):
        return PrivilegeRefused(
            f"the login {connection.user} at {where} was refused ({error})",
            host=alias,
            hint=f"check user and identity_file; `ssh -v -p {connection.port} {connection.user}@{connection.host}`",
        )
    for kinds, message, hint in _UNREACHABLE:
        if isinstance(error, kinds):
            return HostUnreachable(f"{message} ({where}: {reason_of(error)})", host=alias, hint=hint)
    return HostUnreachable(f"no connection to {where}: {reason_of(error)}", host=alias, hint="try `ssh -v` by hand")


_UNREACHABLE: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (socket.gaierror, "the name is not known", "check the address in hosts.toml, and the name service"),
    (NoValidConnectionsError, "the connection was refused", "is sshd running there, and is the port right?"),
    (TimeoutError, "nothing answered", "is the host up; is a firewall or VPN in between?"),
    (ChannelException, "the jump host could not reach it", "try it from the jump host"),
    ((SSHException, EOFError), "no SSH connection came about", "does sshd answer on this port?"),
)


def _changed_key(error: BadHostKeyException, connection: Connection, settings: HostSettings) -> HostKeyRefused:
    name = f"[{connection.host}]:{connection.port}" if connection.port != 22 else connection.host
    file = _known_hosts_files(connection, settings)[0]
    return HostKeyRefused(
        f"the host key of {name} has CHANGED: it is {error.key.get_name()} {fingerprint(error.key)}, "
        f"known is {error.expected_key.get_name()} {fingerprint(error.expected_key)}",
        host=settings.alias,
        hint="find out why (reinstalled, or somebody in between). Only when it is right: "
        f"`ssh-keygen -R '{name}' -f {file}`, then `{_scan(name, error.key)} >> {file}`",
    )


def _scan(name: str, key: paramiko.PKey) -> str:
    host, _, port = name.removeprefix("[").partition("]:")
    kind = key.get_name().removeprefix("ssh-").partition("-")[0]
    return " ".join(["ssh-keyscan", *(["-p", port] if port else []), "-t", kind, host])
