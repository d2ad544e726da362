"""How many requests an engine works on, as the program on its host tells it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from opslib.onhost import in_flight

BUSY = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting{engine="0"} 4.0\n'
IDLE = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """A server whose answers are what `answers` holds, the last one again and again."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = self.server.answers
            text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            del args

    made = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def told(server: HTTPServer, answers: list[str], capsys, monkeypatch, deadline_s: float = 5.0) -> list[dict]:
    """The lines that the program prints."""
    server.answers = answers
    monkeypatch.setattr(in_flight, "INTERVAL_S", 0.01)
    where = {"port": server.server_address[1], "address": "127.0.0.1", "deadline_s": deadline_s}
    assert in_flight.main(where) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_idle_is_two_answers_in_a_row(server, capsys, monkeypatch) -> None:
    """All engines of a server count together; a request between two idle answers starts the count again."""
    lines = told(server, [BUSY, IDLE, BUSY, IDLE, IDLE], capsys, monkeypatch)
    busy, idle = {"running": 3, "waiting": 4}, {"running": 0, "waiting": 0}
    assert lines == [busy, idle, busy, idle, {"end": "idle"}]


def test_the_deadline_ends_the_waiting(server, capsys, monkeypatch) -> None:
    """What still runs then is the last line before."""
    assert told(server, [BUSY], capsys, monkeypatch, 0.05)[-2:] == [{"running": 3, "waiting": 4}, {"end": "deadline"}]


def test_without_figures_or_without_a_server_it_is_said_which(server, capsys, monkeypatch) -> None:
    """Another program's metrics are unknown; a closed port is closed."""
    assert told(server, ["process_cpu_seconds_total 1\n"], capsys, monkeypatch) == [{"end": "unknown"}]
    monkeypatch.setattr(in_flight, "ask", lambda *_args, **_options: (_ for _ in ()).throw(ConnectionRefusedError()))
    assert told(server, [IDLE], capsys, monkeypatch) == [{"end": "closed"}]
