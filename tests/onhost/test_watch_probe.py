"""The engine is asked where its own command line says, with its own key, and the answer must be its own."""

import os
import subprocess
import sys
import time

import pytest

from opslib.onhost.unit_processes import Ending, processes_of, usage_of
from opslib.onhost.watch_probe import ask_answer, ask_health, find_endpoint
from tests.loopback_sshd import free_port

KEY = "sk-only-on-the-host"
ENGINE = """
import http.server, json, ssl, sys
port, answers, key, cert = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3], sys.argv[4]
class Engine(http.server.BaseHTTPRequestHandler):
    def reply(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/health":
            return self.reply(200, {})
        if key and self.headers.get("Authorization") != "Bearer " + key:
            return self.reply(401, {"error": "Unauthorized"})
        self.reply(200, {"data": [{"id": "tiny"}] if "nothing" not in answers else []})
    def do_POST(self):
        size = int(self.headers["Content-Length"]); asked = json.loads(self.rfile.read(size))
        assert asked["model"] == "tiny"
        if self.path in answers:
            return self.reply(200, {"data": [{"embedding": [0.5]}]} if "embeddings" in self.path else {"choices": [{"text": "x"}]})
        self.reply(404, {"error": {"message": "The model does not support this"}})
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Engine)
if cert:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(cert)
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def engine(tmp_path):
    """Starts engines whose command line reads like vLLM's; gives process and port."""
    started = []

    def start(*, answers="/v1/completions", key="", cert="", flags=(), told_port=None, environment=()):
        port = free_port()
        flags = ("serve", "/srv/models/tiny", "--port", str(told_port or port), *flags)
        argv = [sys.executable, "-c", ENGINE, str(port), answers, key, cert, "/opt/vllm/bin/vllm", *flags]
        process = subprocess.Popen(argv, env={**os.environ, **dict(environment)})
        started.append(process)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            endpoint = find_endpoint(process.pid, "none.service", port=port)._replace(port=port, has_tls=bool(cert))
            if ask_health(endpoint, "/health")[0] == 200:
                break
            time.sleep(0.05)
        return process, port

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_token_is_asked_for_at_the_engine_s_own_port(engine):
    """Port and kind come from the command line of the unit's process, and the socket is its own."""
    process, port = engine()
    endpoint = find_endpoint(process.pid, "none.service", port=1)
    assert (endpoint.port, endpoint.is_engine, endpoint.has_tls) == (port, True, False)
    answer = ask_answer(endpoint)
    assert (answer["kind"], answer["model"], answer["is_ours"]) == ("token", "tiny", True)


@pytest.mark.parametrize("place", ["flag", "environment", "nowhere"])
def test_the_key_is_the_engine_s_own_and_never_told(engine, place):
    """Of its flags or its environment; without it the answer says what is wanted."""
    process, _ = engine(
        key=KEY,
        flags=("--api-key", KEY) if place == "flag" else (),
        environment={"VLLM_API_KEY": KEY}.items() if place == "environment" else (),
    )
    answer = ask_answer(find_endpoint(process.pid, "none.service", port=1))
    assert KEY not in str(answer)
    if place == "nowhere":
        assert "wants an API key" in answer["problem"]
    else:
        assert answer["kind"] == "token"


def test_an_engine_that_embeds_is_asked_for_an_embedding(engine):
    """What it doesn't understand is no failure; the next kind is asked."""
    process, _ = engine(answers="/v1/embeddings")
    answer = ask_answer(find_endpoint(process.pid, "none.service", port=1))
    assert (answer["kind"], answer["path"]) == ("embedding", "/v1/embeddings")


def test_without_a_model_there_is_no_answer(engine):
    """A server that lists no model is not ready."""
    process, _ = engine(answers="nothing")
    assert ask_answer(find_endpoint(process.pid, "none.service", port=1))["problem"] == "/v1/models lists no model"


def test_another_program_on_the_port_is_told(engine):
    """The unit's engine claims a port on which somebody else answers."""
    _, port = engine()
    claims, _ = engine(told_port=port)
    answer = ask_answer(find_endpoint(claims.pid, "none.service", port=1))
    assert (answer["kind"], answer["is_ours"]) == ("token", False)


def test_tls_is_spoken_where_the_engine_does(engine, tmp_path):
    """By its flags; the certificate names another address than the loopback."""
    pem = tmp_path / "both.pem"
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpu-a", "-keyout", "-", "-out", "-")
    pem.write_bytes(subprocess.run(["openssl", *made], check=True, capture_output=True).stdout)
    process, _ = engine(cert=str(pem), flags=("--ssl-certfile", str(pem), "--ssl-keyfile", str(pem)))
    endpoint = find_endpoint(process.pid, "none.service", port=1)
    assert endpoint.has_tls
    assert ask_answer(endpoint)["kind"] == "token"


def test_a_process_and_its_descendants_are_looked_at():
    """Without a control group of the unit: the main process and all below it; their end is known at once."""
    script = "import subprocess,time; subprocess.Popen(['sleep','30']); x=0\nwhile True: x+=1"
    process = subprocess.Popen([sys.executable, "-c", script])
    ending = Ending(process.pid)
    try:
        deadline = time.monotonic() + 10
        while len(processes_of(process.pid, "none.service")) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        first, *below = processes_of(process.pid, "none.service")
        assert (first, len(below)) == (process.pid, 1)
        before = usage_of(process.pid, "none.service")
        time.sleep(0.5)
        assert usage_of(process.pid, "none.service").cpu_s > before.cpu_s
        assert not ending.has_come()
    finally:
        process.kill()
        process.wait()
        os.kill(below[0], 9)
    assert ending.has_come()
    ending.close()
