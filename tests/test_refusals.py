"""What `opslib run` refuses: exit code 4, words that help, and nothing contacted or nothing changed."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opslib.domain.host import HostSettings
from tests.conftest import opened
from tests.loopback_sshd import keygen
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip

SECRET = "hf_" + "Zz9yX8wV7uT6sR5qP4oN3mL2k"  # no real one

# what is wrong, arguments after `opslib run`, pieces of the one line that says so
NOTHING_CONTACTED = {
    "unknown parameter": (["10-verify-download", "-p", "modle=x"], ["modle", "did you mean model?"]),
    "unknown parameter in a file": (["90-deploy", "-f", "FILE"], ["max_restart", "did you mean max_restarts?"]),
    "wrong type": (["90-deploy", "-p", "port=many"], ["port", "whole number", "'many'"]),
    "out of bounds": (["90-deploy", "-p", "gpu_memory_utilization=1.5"], ["gpu_memory_utilization", "1"]),
    "unknown host": (["90-deploy", "-p", "host=gpu-b"], ["'gpu-b'", "hosts.toml", "did you mean 'gpu-a'?"]),
    "unknown scenario": (["90-deploy", "-p", "host=rehearsal:helthy"], ["'helthy'", "did you mean healthy?"]),
    "unknown runbook": (["90-deplyo"], ["'90-deplyo'", "did you mean 90-deploy?"]),
    "literal secret in a variable": (
        ["90-deploy", "-p", f"environment={{HF_TOKEN: {SECRET}}}"],
        ["HF_TOKEN", "env:NAME or file:PATH"],
    ),
    "literal address of a notification": (
        ["90-deploy", "--notify", f"slack://{SECRET}/b/c"],
        ["notify", "env:NAME or file:PATH"],
    ),
    "option out of bounds": (["90-deploy", "-p", "timeout_s=0"], ["timeout_s", "at least 1"]),
    "literal secret in a flag": (
        ["90-deploy", "-p", f"extra_args=[--api-key, {SECRET}]"],
        ["--api-key", "env:NAME or file:PATH"],
    ),
}


class Knocks:
    """A port that notes who connects, and hangs up."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, peer = self.listener.accept()
            except OSError:
                return
            self.heard.append(peer)
            client.close()


@pytest.fixture
def knocks() -> Iterator[Knocks]:
    """The port behind the inventory's `gpu-a`."""
    knocks = Knocks()
    yield knocks
    knocks.listener.close()


def inventory(path: Path, **hosts: HostSettings) -> None:
    """A hosts.toml with these entries."""
    lines = []
    for alias, settings in hosts.items():
        fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
        lines += [f"[hosts.{alias}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    path.write_text("\n".join(lines) + "\n")


def opslib(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a shell would call it, with its inventory and records in `tmp_path`."""
    return subprocess.run(
        [sys.executable, "-m", "opslib.cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        env={**os.environ, "OPSLIB_HOSTS": str(tmp_path / "hosts.toml")},
    )


@pytest.mark.parametrize("name", NOTHING_CONTACTED)
def test_a_mistake_contacts_nobody(name: str, tmp_path: Path, knocks: Knocks) -> None:
    """A wrong parameter, name or a literal secret: exit code 4, one line on standard error, no connection, no record."""
    inventory(tmp_path / "hosts.toml", **{"gpu-a": HostSettings(alias="gpu-a", address="127.0.0.1", port=knocks.port)})
    (tmp_path / "parameters.yaml").write_text("max_restart: 2\n")
    words, pieces = NOTHING_CONTACTED[name]
    words = [str(tmp_path / "parameters.yaml") if word == "FILE" else word for word in words]
    host = [] if any(word.startswith("host=") for word in words) else ["-p", "host=gpu-a"]
    done = opslib(tmp_path, "run", words[0], *host, *words[1:], "--runs-dir", str(tmp_path / "runs"))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("opslib: ")
    assert done.stderr.count("\n") == 1
    assert all(piece in done.stderr for piece in pieces), done.stderr
    assert SECRET not in done.stderr
    assert knocks.heard == []
    assert not (tmp_path / "runs").exists()


def test_a_mistyped_secret_is_not_repeated(tmp_path: Path) -> None:
    """Where the mistake is in the secret itself, it is quoted without it."""
    inventory(tmp_path / "hosts.toml", **{"gpu-a": HostSettings(alias="gpu-a", address="127.0.0.1")})
    done = opslib(tmp_path, "run", "90-deploy", "-p", "host=gpu-a", "-p", f"environment={{HF_TOKEN:{SECRET}}}")
    assert done.returncode == 4
    assert "HF_TOKEN" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_the_listening_port_would_have_heard(tmp_path: Path, knocks: Knocks) -> None:
    """The proof above is one: the same run without a mistake does connect, and could not find out (exit code 3)."""
    inventory(tmp_path / "hosts.toml", **{"gpu-a": HostSettings(alias="gpu-a", address="127.0.0.1", port=knocks.port)})
    done = opslib(tmp_path, "run", "10-verify-download", "-p", "host=gpu-a", "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert knocks.heard


def test_a_refusal_in_json_is_one_document(tmp_path: Path, knocks: Knocks) -> None:
    """With --json the refusal is a document on standard output as well."""
    inventory(tmp_path / "hosts.toml", **{"gpu-a": HostSettings(alias="gpu-a", address="127.0.0.1", port=knocks.port)})
    done = opslib(tmp_path, "run", "10-verify-download", "-p", "host=gpu-a", "-p", "modle=x", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["error"]["kind"]) == (4, 4, "BadParameter")
    assert "did you mean model?" in document["error"]["problems"][0]
    assert knocks.heard == []


# what refuses -> pieces of the sentence: what was asked, what came back, what to do next
NOTHING_CHANGED = {
    "changed host key": ["host key of", "has CHANGED", "SHA256:", "Next: find out why", "ssh-keygen -R"],
    "sudo refused": ["sudo refused: sudo: a password is required", "Next: allow it without a password", "NOPASSWD"],
    "no Python on the host": ["no usable Python (/nonexistent/python3)", "Next: install Python 3.8"],
}


@pytest.fixture(scope="module")
def ready_debian() -> Iterator[HostSettings]:
    """A real Debian with engine and checkpoint, where a launch would work."""
    with or_skip(scenario_host("healthy")) as settings:
        yield settings


@contextmanager
def refusing(kind: str, why: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HostSettings]:
    """Settings of a host that refuses for this reason."""
    if kind == "rehearsal":
        rehearsal = request.getfixturevalue("rehearsal")
        settings, marker = rehearsal.settings, rehearsal.root / "etc" / "sudo-refused"
    else:
        user = "nosudo" if why == "sudo refused" else "ops"
        settings, marker = request.getfixturevalue("ready_debian").model_copy(update={"user": user}), None
    if why == "changed host key":
        keygen(tmp_path / "other")
        name = Path(settings.known_hosts_file or "").read_text().split()[0]
        (tmp_path / "known_hosts").write_text(f"{name} {(tmp_path / 'other.pub').read_text()}")
        settings = settings.model_copy(update={"known_hosts_file": str(tmp_path / "known_hosts")})
    if why == "no Python on the host":
        settings = settings.model_copy(update={"python": "/nonexistent/python3"})
    if why == "sudo refused" and marker:
        marker.touch()
    try:
        yield settings
    finally:
        if marker:
            marker.unlink(missing_ok=True)


@contextmanager
def unchanged(kind: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Proves that no file of /etc and /var/lib, and no unit's state, differs afterwards."""
    if kind == "rehearsal":
        rehearsal = request.getfixturevalue("rehearsal")
        settings, root = rehearsal.settings, str(rehearsal.root)
    else:
        settings, root = request.getfixturevalue("ready_debian").model_copy(update={"user": "root"}), ""
    find = ["find", f"{root}/etc", f"{root}/var/lib", "-not", "-name", "sudo-refused", "-printf", "%p %s %m %u %i\\n"]
    units = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--type=service", "vllm*"]

    def look() -> tuple[str, str]:
        with opened(settings) as host:
            listing = host.run(find)
            assert listing.text.count("\n") > 5, listing.error_text
            return listing.text, host.run(units).text

    before = look()
    yield
    assert look() == before


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("realhost", marks=pytest.mark.realhost)])
@pytest.mark.parametrize("why", NOTHING_CHANGED)
def test_a_refusal_changes_nothing(kind: str, why: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A changed key, sudo that says no, a host without Python: exit code 4, host and next step named, nothing changed."""
    with refusing(kind, why, tmp_path, request) as settings:
        inventory(tmp_path / "hosts.toml", practice=settings)
        with unchanged(kind, request):
            done = opslib(
                tmp_path,
                "run",
                "30-launch",
                "-p",
                "host=practice",
                "-p",
                "consent=given",
                "--runs-dir",
                str(tmp_path / "runs"),
            )
    told = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert done.returncode == 4, told
    assert "practice" in told
    for piece in NOTHING_CHANGED[why]:
        assert piece in told, told
    assert "Traceback" not in told
    [folder] = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "record.json").read_text())
    assert record["outcome"]["state"] == "unknown"
    assert NOTHING_CHANGED[why][0] in record["outcome"]["reason"]
