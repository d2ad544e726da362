"""A loopback port whose connections are carried over channels, one thread for each direction."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paramiko

from opslib.errors import OpslibError


@contextmanager
def forwarded(reach: Callable[[], paramiko.Channel]) -> Iterator[int]:
    """Listen on a free loopback port while open; every connection to it goes over a channel that `reach` opens.

    A channel that cannot be opened (nothing listens on the host) closes the connection, as a refusal would.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    is_closing = threading.Event()
    ends: set[socket.socket | paramiko.Channel] = set()

    def serve(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            channel = reach()
        except OpslibError:
            client.close()
            return
        ends.update((client, channel))
        back = threading.Thread(target=_copy, args=(channel, client), daemon=True)
        back.start()
        _copy(client, channel)
        back.join()
        for end in (client, channel):
            end.close()
            ends.discard(end)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while not is_closing.is_set():
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        is_closing.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
        listener.close()
        for end in tuple(ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _copy(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Carry bytes until the source ends, then end the sink in that direction only."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
