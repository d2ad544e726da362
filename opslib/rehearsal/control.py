"""The daemon's side of the stand-in commands: a unix socket that takes argument vectors and gives back output."""

import asyncio
import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from opslib.rehearsal.leftovers import PREFIX, hold
from opslib.rehearsal.terminal import Terminal

Command = Callable[[Sequence[str], Terminal], Awaitable[int]]

_FRAME = struct.Struct("!cI")  # kind (O stdout, E stderr, X exit status) and length
_CREDENTIALS = struct.Struct("3i")
_REQUEST_LIMIT = 1 << 20
_LONGEST_PATH = 107  # unix(7): sun_path, less its NUL


def send_request(path: Path, argv: Sequence[str]) -> int:
    """Send one command to the daemon behind `path` and return its exit status; its output is passed over."""
    request = "\0".join([argv[0], "drill", *argv[1:]]).encode("utf-8", "surrogateescape")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon, daemon.makefile("rb") as answer:
        daemon.connect(str(path))
        daemon.sendall(b"%d\n" % len(request) + request)
        while True:
            kind, length = _FRAME.unpack(answer.read(_FRAME.size))
            body = answer.read(length)
            if kind == b"X":
                return int(body)


@contextlib.contextmanager
def socket_place(root: Path) -> Iterator[Path]:
    """Where the socket of a host with this root lies: within it, or, where its path is too long for one, in /tmp."""
    within = root / "run/control.socket"
    if len(os.fsencode(within)) <= _LONGEST_PATH:
        yield within
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX) as short:
        owner = hold(Path(short))
        try:
            yield Path(short) / "control"
        finally:
            os.close(owner)


class ControlServer:
    """Serves `commands` by name on a unix socket; see `standin/client.py` for the other side."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        self.path = path
        self._commands = commands
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=_REQUEST_LIMIT)

    def close(self) -> None:
        """Stop listening."""
        if self._server:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled is whoever still follows when the daemon ends; asyncio 3.11 would print that as a fault.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            length = int((await reader.readline()).strip() or b"0")
            request = (await reader.readexactly(length)).decode("utf-8", "surrogateescape").split("\0")
            name, sudo_uid, argv = request[0], request[1], request[2:]
            terminal = Terminal(
                write_out=lambda data: _write(writer, b"O", data),
                write_err=lambda data: _write(writer, b"E", data),
                drain=writer.drain,
                is_root=bool(sudo_uid) or _peer_uid(writer) == 0,
            )
            await self._run(name, argv, terminal, reader, writer)
        writer.close()

    async def _run(
        self,
        name: str,
        argv: Sequence[str],
        terminal: Terminal,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async def notice_departure() -> None:
            await reader.read()
            terminal.gone.set()

        watcher = asyncio.ensure_future(notice_departure())
        try:
            exit_status = await self._commands[name](argv, terminal)
            _write(writer, b"X", str(exit_status).encode())
            await writer.drain()
        finally:
            watcher.cancel()


def _write(writer: asyncio.StreamWriter, kind: bytes, data: bytes) -> None:
    if data and not writer.is_closing():
        writer.write(_FRAME.pack(kind, len(data)) + data)


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket")
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid
