"""The truth server in a child process, and a run of the load generator against it."""

import contextlib
import io
import json
import socket
import subprocess
import sys
from pathlib import Path

from opslib.onhost import loadgen

PROGRAM = Path(__file__).parent / "truth_server.py"


@contextlib.contextmanager
def truth_server(**options):
    """A truth server (ttft 40 ms, itl 5 ms unless told otherwise); gives its port."""
    argv = [sys.executable, str(PROGRAM), json.dumps({"ttft_ms": 40, "itl_ms": 5, **options})]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline())
        process.stdin.close()


def truth_of(port):
    """What the server says it did."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(b"GET /truth HTTP/1.1\r\n\r\n")
        link.settimeout(2)
        head, _, body = link.recv(65536).partition(b"\r\n\r\n")
        while len(body) < int(head.rpartition(b":")[2]):
            body += link.recv(65536)
    return json.loads(body)


def run(port, model="good", **arguments):
    """The lines that a run prints, by type."""
    defaults = {"levels": [2], "n_requests": 4, "output_tokens": 8, "input_tokens": 40, "warmup": 1, "deadline_s": 10}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert loadgen.main({"port": port, "model": model, **defaults, **arguments}) == 0
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert lines[-1]["type"] == "end"
    return {kind: [line for line in lines if line["type"] == kind] for kind in ("progress", "request", "level", "end")}
