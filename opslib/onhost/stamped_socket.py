"""A plain socket whose bytes bear the kernel's own time of arrival (SO_TIMESTAMPNS, socket(7)), as on Linux.

A client that wakes late still knows when a token came.
"""

import asyncio
import socket
import struct
import time
from time import perf_counter
from typing import Callable, Optional

READ_BYTES = 65536
MAX_STAMP_AGE_S = 5.0  # an older one says that the machine's clock was set
SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; the module socket has no name for it
_timespec = struct.Struct("@ll")


class StampedSocket:
    """A connected socket, the least of a transport: `take` gets what comes with its stamp, `lost` the end and why."""

    def __init__(
        self,
        link: socket.socket,
        take: Callable[[float, bytes], None],
        lost: Callable[[Optional[Exception]], None],
    ) -> None:
        self._link = link
        self._take = take
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._loop.add_reader(link.fileno(), self._read)

    def write(self, data: bytes) -> None:
        """Send now what the kernel takes, and the rest as soon as it can."""
        try:
            n_sent = self._link.send(data)
        except (BlockingIOError, InterruptedError):
            n_sent = 0
        except OSError as error:
            self._lose(error)
            return
        if n_sent < len(data):
            self._unsent = data[n_sent:]
            self._loop.add_writer(self._link.fileno(), self._write_on)

    def abort(self) -> None:
        """Close at once."""
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
            self._loop.remove_writer(self._link.fileno())
            self._link.close()

    def _write_on(self) -> None:
        self._loop.remove_writer(self._link.fileno())
        self.write(self._unsent)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._link.recvmsg(READ_BYTES, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            at = perf_counter()
            if ancillary and len(ancillary[0][2]) == _timespec.size:
                seconds, nanoseconds = _timespec.unpack(ancillary[0][2])
                age = time.time() - seconds - 1e-9 * nanoseconds
                if 0.0 < age < MAX_STAMP_AGE_S:
                    at -= age
            self._take(at, data)
        else:
            self._lose(None)

    def _lose(self, error: Optional[OSError]) -> None:
        self.abort()
        self._lost(error)
