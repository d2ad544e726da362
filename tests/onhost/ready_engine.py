"""A server that answers as a ready engine does."""

import http.server
import threading


class Health(http.server.BaseHTTPRequestHandler):
    """200 for /health, 404 for the rest, and no word on the terminal."""

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


def start_ready_engine() -> http.server.ThreadingHTTPServer:
    """Serve on a free port of the loopback until it is shut down."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
