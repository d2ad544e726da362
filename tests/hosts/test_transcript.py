"""Vectors are recorded, and compared by their shape."""

import json
from pathlib import Path

import pytest

from opslib.domain.host import HostSettings
from opslib.hosts import open_host
from opslib.hosts.recording import RecordingHost
from opslib.hosts.transcript import vector_shape
from tests.fakes import FakeHost

SHAPES = [
    ("systemctl show vllm-minimax --property=Result", "systemctl show <value> --property=Result"),
    ("systemctl --user daemon-reload", "systemctl --user daemon-reload"),
    ("systemctl restart x.service", "systemctl restart <value>"),
    ("journalctl -u a -n 50 -o json --all", "journalctl -u <value> -n <number> -o json --all"),
    ("journalctl --unit=a --after-cursor=s=1;i=2", "journalctl --unit=<value> --after-cursor=<value>"),
    (
        "journalctl _SYSTEMD_INVOCATION_ID=ab + INVOCATION_ID=ab",
        "journalctl _SYSTEMD_INVOCATION_ID=<value> + INVOCATION_ID=<value>",
    ),
    ("nvidia-smi --query-gpu=name --format=csv,noheader", "nvidia-smi --query-gpu=name --format=csv,noheader"),
    ("/usr/bin/cat -- /etc/x", "cat -- <path>"),
    (
        "install --mode=0644 --owner=root -- /dev/stdin /etc/x",
        "install --mode=<number> --owner=<value> -- <path> <path>",
    ),
    ("ss -H -ltnp sport = :8000", "ss -H -ltnp <value> <value> <value>"),
    ("env TZ=UTC LC_ALL=C systemctl show x", "env TZ=UTC LC_ALL=C systemctl show <value>"),
    ("journalctl --lines=5 _TRANSPORT=kernel", "journalctl --lines=<number> _TRANSPORT=kernel"),
    ("tail -n -5 -c3", "tail -n <number> -c<number>"),
]


@pytest.mark.parametrize(("vector", "shape"), SHAPES)
def test_values_are_left_out(vector: str, shape: str) -> None:
    """Program, subcommand and options stay; paths, numbers, names and ids become placeholders."""
    assert vector_shape(vector.split()) == tuple(shape.split())


def test_scripts_are_told_apart() -> None:
    """A script is known by a digest of its words, so that another script is another shape."""
    one, two = vector_shape(["sh", "-c", "echo a", "x"]), vector_shape(["sh", "-c", "echo b", "x"])
    assert one != two
    assert one[2].startswith("<script ")
    assert vector_shape(["sh", "-c", "sleep 1 > /tmp/a"]) == vector_shape(["sh", "-c", "sleep 22.5 > /tmp/b"])
    assert vector_shape([]) == ()


def test_commands_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With $OPSLIB_TRANSCRIPT every command leaves a line, also those of reading and writing a file."""
    transcript = tmp_path / "transcript.jsonl"
    monkeypatch.setenv("OPSLIB_TRANSCRIPT", str(transcript))
    host = open_host(HostSettings(alias="here", address="local"))
    host.run(["true"], sudo=True)
    host.run_program("identity", {})
    with host.stream(["echo", "x"]) as lines:
        assert list(lines) == [b"x"]
    host.write_file(f"{tmp_path}/file", b"x")
    entries = [json.loads(line) for line in transcript.read_text().splitlines()]
    expected = {"alias": "here", "address": "local", "kind": "local", "argv": ["true"], "sudo": True, "program": None}
    assert entries[0] == expected
    assert entries[1]["program"] == "identity"
    assert (entries[2]["argv"], entries[2].get("carried")) == (["echo", "x"], None)
    assert [entry["argv"][0] for entry in entries[2:]] == ["echo", "cat", "install", "sha256sum", "mv"]


def test_vectors_that_programs_run_are_recorded(tmp_path: Path) -> None:
    """A program that is told argument vectors to run leaves them in its line."""
    transcript = tmp_path / "transcript.jsonl"
    host = RecordingHost(FakeHost(), transcript)
    with host.stream_program("supervise", {"argv": ["true"]}):
        pass
    assert json.loads(transcript.read_text())["carried"] == [["true"]]
