"""Who listens on a TCP port."""

import re

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

_USER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+),')


class Listener(Value):
    """A socket that listens; `pid` is None where the login may not see whose it is (ask with sudo)."""

    address: str
    port: int
    pid: int | None = None
    process_name: str = ""


def listeners_command(port: int) -> tuple[str, ...]:
    """Asks who listens on TCP `port`, on any address; process names need root."""
    return ("ss", "-H", "-ltnp", "sport", "=", f":{port}")


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Reads `ss -H -ltnp`, one listener per socket and process.

    >>> parse_listeners('LISTEN 0 128 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=7,fd=3))')[0].process_name
    'vllm'
    """
    return tuple(listener for line in text.splitlines() if line.strip() for listener in _listeners(line))


def _listeners(line: str) -> list[Listener]:
    fields = line.split(maxsplit=5)
    address, _, port = fields[3].rpartition(":") if len(fields) >= 5 else ("", "", "")
    if not port.isdecimal():
        raise UnexpectedAnswer(f"ss answered a line without a local address: {line!r}")
    users = _USER.findall(fields[5]) if len(fields) > 5 else []
    if not users:
        return [Listener(address=address, port=int(port))]
    return [Listener(address=address, port=int(port), pid=int(pid), process_name=name) for name, pid in users]
