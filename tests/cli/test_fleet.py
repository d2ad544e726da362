"""`opslib fleet`: Prefect's own commands with the kit's settings; without Prefect one clear line."""

import os
import sys

import pytest

from opslib.app import prefect_site
from opslib.cli.main import call


@pytest.fixture
def become(monkeypatch):
    """What the process would go on as, with the environment that it would have."""
    seen = []

    def execv(program, argv):
        seen.append((argv, dict(os.environ)))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    for name in (*prefect_site.SETTINGS, "PREFECT_API_URL", "OPSLIB_HOSTS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return seen


@pytest.mark.parametrize("verb", ["server", "worker"])
def test_without_prefect_the_extra_is_named(verb, monkeypatch, capsys):
    """Nothing is started, exit code 4, and how to get it."""
    monkeypatch.setattr(prefect_site, "find_spec", lambda _name: None)
    assert call(["fleet", verb]) == 4
    told = capsys.readouterr().err
    assert "Prefect is not installed" in told
    assert "make setup-fleet" in told
    assert "Traceback" not in told


def test_the_server_tells_nobody_of_itself(become, monkeypatch):
    """It becomes Prefect's own server, with the statistics of server and library off, and leases that outlive it."""
    monkeypatch.setattr(prefect_site, "find_spec", lambda _name: object())
    assert call(["fleet", "server", "--port", "4242"]) == 0
    [(argv, environment)] = become
    assert argv == [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", "4242"]
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"].endswith("filesystem")


def test_a_worker_is_prefects_own(become, monkeypatch):
    """It tells the server of the flows, then becomes a worker of the kit's pool; what the environment says counts."""
    monkeypatch.setattr(prefect_site, "find_spec", lambda _name: object())
    monkeypatch.setattr(prefect_site, "register", lambda: None)
    monkeypatch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "45")
    assert call(["fleet", "worker", "--name", "desk", "--limit", "12"]) == 0
    [(argv, environment)] = become
    assert argv[1:5] == ["-m", "prefect", "worker", "start"]
    assert argv[5:] == ["--pool", "opslib", "--type", "process", "--limit", "12", "--name", "desk"]
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "45"


def test_a_worker_has_room_for_more_than_fleets(capsys):
    """A limit that fleets alone could fill would have them wait for their hosts forever."""
    assert call(["fleet", "worker", "--limit", str(prefect_site.MOST_FLEETS)]) == 4
    assert "--limit" in capsys.readouterr().err
