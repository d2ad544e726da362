"""systemctl and journalctl of a rehearsal host: sends its argument vector to the daemon and relays the answer.

Standard library only and few imports: it starts in about 15 ms. The daemon's socket is named in `../run/control`
beside the directory in which this program lies.
"""

import os
import select
import signal
import socket
import struct
import sys

_FRAME = struct.Struct("!cI")
_DESCRIPTORS = {b"O": 1, b"E": 2}


def main() -> int:
    """Relay one command; the exit status is the daemon's."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    name = os.path.basename(sys.argv[0])
    here = os.path.dirname(os.path.realpath(__file__))
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with open(os.path.join(here, "..", "run", "control"), encoding="utf-8") as file:
            daemon.connect(file.read().strip())
    except OSError as error:
        sys.stderr.write("%s: the rehearsal host's daemon does not answer: %s\n" % (name, error.strerror))
        return 1
    fields = [name, os.environ.get("SUDO_UID", ""), *sys.argv[1:]]
    request = "\0".join(fields).encode("utf-8", "surrogateescape")
    daemon.sendall(b"%d\n" % len(request) + request)
    return _relay(daemon)


def _relay(daemon: socket.socket) -> int:
    buffer = b""
    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    poll.register(1, 0)  # only errors: whoever read our output has gone
    while True:
        events = dict(poll.poll())
        if events.get(1, 0) & select.POLLERR:
            return 1
        data = daemon.recv(65536) if daemon.fileno() in events else b""
        if daemon.fileno() in events and not data:
            return 1
        buffer += data
        while len(buffer) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(buffer)
            body, rest = buffer[_FRAME.size : _FRAME.size + length], buffer[_FRAME.size + length :]
            if len(body) < length:
                break
            buffer = rest
            if kind == b"X":
                return int(body)
            _write_all(_DESCRIPTORS[kind], body)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main())
