"""A unit's life by the command line, on the rehearsal host and on a real Debian: what each verb does is asked again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opslib.cli.main import call
from opslib.domain.host import Host, HostSettings
from opslib.rehearsal.server import start_rehearsal
from opslib.workflow.install import apply_plan, plan_install, unit_text_for
from tests.conftest import opened
from tests.rig.inventory import write_inventory
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip

UNIT = "vllm-minimax"
FLAGS = "--port 8000 --tensor-parallel-size 4 --gpu-memory-utilization 0.95 --max-model-len 131072"
KINDS = ["rehearsal", pytest.param("realhost", marks=pytest.mark.realhost)]


def unit_text(host: Host, flags: str = FLAGS, *, unit: str = UNIT, has_secrets: bool = False) -> str:
    """The kit's unit on this host."""
    model = f"{host.settings.models_dir}/minimax-m2-230b-fp8"
    return unit_text_for(
        host,
        unit=unit,
        model_path=model,
        flags=flags.split(),
        gpus=[0, 1, 2, 3],
        required_free_gib=60,
        wait_s=20,
        has_secrets=has_secrets,
    )


def install(settings: HostSettings, flags: str, secret: str = "", *, unit: str = UNIT) -> None:
    """Install the kit's unit with these flags, and with a secret in its environment file."""
    with opened(settings) as host:
        text = unit_text(host, flags, unit=unit, has_secrets=bool(secret))
        plan = plan_install(host, unit=unit, unit_text=text, secrets={"HF_TOKEN": secret} if secret else {})
        assert apply_plan(host, plan).state == "ok"


def use_inventory(directory: Path, settings: HostSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hosts.toml that names the host `a`, no matter of which kind, and is found."""
    path = write_inventory(directory / "hosts.toml", "a", settings.model_copy(update={"is_rehearsal": False}))
    monkeypatch.setenv("OPSLIB_HOSTS", str(path))


@contextmanager
def served_host(kind: str, scenario: str = "healthy") -> Iterator[HostSettings]:
    """A host with the stand-in engine, in the state of the scenario."""
    if kind == "rehearsal":
        with start_rehearsal(scenario) as rehearsal:
            yield rehearsal.settings
    else:
        with or_skip(scenario_host(scenario)) as settings:
            yield settings


def hurry(settings: HostSettings) -> None:
    """Let the stand-in engine load ten times faster: its phases are not what is looked at here."""
    with opened(settings) as host:
        path = f"{settings.vllm.rpartition('/bin/')[0]}/share/rehearsal.json"
        known = json.loads(host.read_file(path) or b"")
        host.write_file(path, json.dumps({**known, "clock_factor": known["clock_factor"] * 10}).encode(), sudo=True)


@pytest.fixture(scope="module", params=KINDS)
def settings(request: pytest.FixtureRequest) -> Iterator[HostSettings]:
    """Each kind of host in turn, with the unit installed."""
    with served_host(request.param) as found:
        hurry(found)
        install(found, f"{FLAGS} --max-num-seqs 256")
        yield found


@pytest.fixture
def opslib(settings, tmp_path, monkeypatch, capsys):
    """A command line on the host `a`: the exit code, and the document where --json was given."""
    use_inventory(tmp_path, settings, monkeypatch)

    def run(words: str) -> tuple[int, dict]:
        code = call(words.split())
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in words else {"text": out}

    return run


def states(document: dict) -> dict[str, str]:
    """The checks of a report by name."""
    return {check["name"]: check["state"] for check in document["checks"]}


def test_a_life_of_one_unit(settings, opslib) -> None:
    """Nothing without consent; each verb does what it says, proved by asking again; a file that changed is told."""
    assert opslib(f"lint a {UNIT} --json")[1]["state"] == "ok"
    assert opslib(f"start a {UNIT}")[0] == 4
    assert opslib(f"status a {UNIT} --json")[1]["seen"]["status"]["active_state"] == "inactive"
    code, started = opslib(f"start a {UNIT} --yes --json")
    assert code == 0
    proven = {"ready": "ok", "new-invocation": "ok", "answering-process": "ok", "running-flags": "ok"}
    assert states(started) == proven
    code, look = opslib(f"status a {UNIT} --json")
    assert (code, look["seen"]["status"]["active_state"], look["flags"]["state"]) == (0, "active", "ok")
    assert "GPU 3" in look["gpu_memory"]
    install(settings, f"{FLAGS} --max-num-seqs 128", "first")
    code, told = opslib(f"status a {UNIT} --json")
    assert (code, told["flags"]["summary"][-3:]) == (1, "128")
    assert states(opslib(f"restart a {UNIT} --yes --json")[1]) == proven
    code, again = opslib(f"status a {UNIT} --json")
    assert (code, again["flags"]["state"]) == (0, "ok")
    assert again["seen"]["status"]["invocation_id"] not in {look["seen"]["status"]["invocation_id"], ""}
    code, drained = opslib(f"drain a {UNIT} --yes --json")
    assert (code, states(drained)) == (0, {"drained": "ok", "stopped": "ok", "gpu-memory-released": "ok"})
    assert "GPU 0: " in drained["summary"]
    assert opslib(f"stop a {UNIT} --yes --json")[0] == 0
    code, entries = opslib(f"logs a {UNIT} --json --lines 400")
    assert any("Application startup complete" in entry["message"] for entry in entries["entries"])
    assert opslib(f"logs a {UNIT} --json --current --since 1h")[0] == 0


def test_service_comes_back_first(settings, opslib, tmp_path) -> None:
    """A deploy that fails is taken back by one command: unit and environment of the last one that served, evidence kept."""
    install(settings, f"{FLAGS} --max-num-seqs 128 --no-such-flag 1", "second")
    code, failed = opslib(f"start a {UNIT} --yes --json")
    assert (code, states(failed)) == (2, {"ready": "critical"})
    listed = opslib(f"rollback a {UNIT} --list --json")[1]
    assert listed["served_last"] == listed["versions"][0]["kept_at"].translate({ord(":"): "", ord("-"): ""})
    assert opslib(f"rollback a {UNIT} --runs-dir {tmp_path}")[0] == 4
    code, back = opslib(f"rollback a {UNIT} --runs-dir {tmp_path} --yes --json")
    assert (code, set(states(back).values()), back["verb"]) == (0, {"ok"}, "rollback"), back
    assert "the host's journal: it served at" in back["checks"][0]["summary"]
    assert list(tmp_path.glob("*-40-investigate-crash/evidence/*"))
    with opened(settings) as host:
        text = host.read_file(f"{settings.unit_dir}/{UNIT}.service", sudo=True).decode()
        secret = host.read_file(f"{settings.state_dir}/{UNIT}.env", sudo=True).decode()
    assert (text.count("--max-num-seqs 128"), text.count("no-such-flag")) == (1, 0)
    assert secret == 'HF_TOKEN="first"\n'
    assert opslib(f"rollback a {UNIT} --to 2001")[0] == 4


ENGINE = """import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        busy = self.path == "/metrics" and __import__("os").path.exists("/tmp/opslib-busy")
        body = b"vllm:num_requests_running 1\\nvllm:num_requests_waiting 2\\n" if busy else b"vllm:num_requests_running 0\\n"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Answer).serve_forever()
"""


@pytest.fixture(scope="module")
def own(debian) -> HostSettings:
    """`ops` on a real Debian with its own systemd and a small engine of its own."""
    assert debian.ssh("loginctl", "enable-linger", "ops").returncode == 0
    plain = debian.ops_settings.model_dump(exclude={"sudo", "unit_dir", "state_dir", "scope"})
    settings = HostSettings.model_validate({**plain, "scope": "user"})
    text = "[Service]\nExecStart=/usr/bin/python3 /home/ops/vllm serve m --port 8123\nStartLimitBurst=2\n"
    with opened(settings) as host:
        host.write_file("/home/ops/vllm", ENGINE.encode(), mode=0o755)
        assert apply_plan(host, plan_install(host, unit="vllm-own", unit_text=text)).state == "ok"
    return settings


@pytest.mark.realhost
def test_a_life_in_the_logins_own_scope(own, debian, tmp_path, monkeypatch, capsys) -> None:
    """Without any rights: start, a drain that finds requests and stops nothing, a failure's start limit cleared, stop."""
    use_inventory(tmp_path, own, monkeypatch)

    def run(words: str) -> tuple[int, str]:
        return call(words.split()), "".join(capsys.readouterr())

    assert run("start a vllm-own --yes")[0] == 0
    debian.ssh("touch", "/tmp/opslib-busy")
    code, told = run("drain a vllm-own --yes --deadline 1")
    assert (code, "still 1 requests running, 2 waiting after 1 s" in told) == (1, True)
    assert run("status a vllm-own")[0] == 0
    assert run("drain a vllm-own --yes --deadline 1 --force")[0] == 1
    debian.ssh("mv", "/home/ops/vllm", "/home/ops/moved")
    assert run("start a vllm-own --yes")[0] == 2
    debian.ssh("mv", "/home/ops/moved", "/home/ops/vllm")
    code, told = run("start a vllm-own --yes")
    assert (code, "reset-failed -- vllm-own.service" in told) == (0, True), told
    code, told = run("restart a vllm-own --yes")
    assert (code, "restart vllm-own.service" in told) == (0, True)
    assert run("stop a vllm-own --yes")[0] == 0
    assert run("lint a vllm-own")[0] == 1


def test_an_unknown_unit_is_refused(opslib) -> None:
    """No verb does anything to a unit that systemd doesn't know."""
    for verb in ("start", "stop", "restart", "drain"):
        assert opslib(f"{verb} a opslib-never-there --yes")[0] == 4
