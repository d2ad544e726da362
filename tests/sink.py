"""A small HTTP server that keeps what is posted to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Sink:
    """What came in, in order, and the address to post to (apprise's json://)."""

    def __init__(self, address: str, status: int) -> None:
        self.messages: list[dict[str, Any]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sink.messages.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"json://{address}:{self.server.server_port}/hook"


@contextmanager
def sink(address: str = "127.0.0.1", status: int = 200) -> Iterator[Sink]:
    """A sink that listens while open, and answers everything with `status`."""
    found = Sink(address, status)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        found.server.server_close()
