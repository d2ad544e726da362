"""A real vLLM in the real Debian host serves the tiny model under systemd."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.rig.real_vllm import ENVIRONMENT, MODEL_DIR, SERVE_FLAGS, VERSION, RealVllmHost, real_vllm_host
from tests.rig.skip import or_skip

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(900)]  # the first run builds the engine

READY_TIMEOUT_S = 240.0
FETCH = """\
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    print(answer.status, answer.read().decode())
"""


@pytest.fixture(scope="module")
def host() -> Iterator[RealVllmHost]:
    with or_skip(real_vllm_host()) as real:
        yield real


def fetch(host: RealVllmHost, path: str, body: str = "") -> tuple[int, str]:
    """Status and body of a request made on the host itself; status 0 where nothing answers."""
    asked = host.debian.ssh("python3", "-c", FETCH, f"http://127.0.0.1:8000{path}", body, timeout_s=90)
    status, _, text = asked.stdout.partition(" ")
    return (int(status), text.strip()) if asked.returncode == 0 else (0, asked.stderr)


def unit_text(host: RealVllmHost) -> str:
    environment = "\n".join(f"Environment={name}={value}" for name, value in host.settings.environment.items())
    command = " ".join((host.settings.vllm, "serve", MODEL_DIR, *SERVE_FLAGS, "--port", "8000"))
    return f"[Service]\n{environment}\nExecStart={command}\nRestart=on-failure\nRestartSec=2\n"


def test_unit_serves_and_answers(host: RealVllmHost) -> None:
    """The unit becomes ready without a restart, completes a prompt, and its journal names the engine's version."""
    assert host.settings.environment == ENVIRONMENT
    debian = host.debian
    debian.put_files({"/etc/systemd/system/vllm-tiny.service": (unit_text(host).encode(), 0o644)})
    debian.ssh("systemctl", "daemon-reload")
    debian.ssh("systemctl", "start", "vllm-tiny")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while fetch(host, "/health")[0] != 200 and time.monotonic() < deadline:
        time.sleep(1)
    shown = debian.ssh("systemctl", "show", "vllm-tiny", "--property=NRestarts,SubState").stdout
    journal = debian.ssh("journalctl", "--unit=vllm-tiny", "--output=cat", "--no-pager").stdout
    assert set(shown.split()) == {"NRestarts=0", "SubState=running"}, journal[-2000:]
    wanted = {"model": MODEL_DIR, "prompt": "12 144 1100", "max_tokens": 8, "temperature": 0}
    status, text = fetch(host, "/v1/completions", json.dumps(wanted))
    assert status == 200
    assert json.loads(text)["usage"]["completion_tokens"] > 0
    assert f"version {VERSION}" in journal
    assert "EngineCore pid=" in journal
