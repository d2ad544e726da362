"""One unit on several practice hosts watched in one stream, and the table that it makes."""

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from opslib.app.fleet_watch import watch_hosts
from opslib.cli.main import call
from opslib.cli.watch_hosts import HostsTable
from opslib.hosts import open_host
from opslib.rehearsal.fleet import start_fleet
from opslib.workflow.launch import show_unit, start_unit

UNIT = "vllm-watched"
SERVES = (
    "import http.server,os\n"
    "class A(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.send_header('Content-Length','0'); self.end_headers()\n"
    "http.server.HTTPServer((os.environ['OPSLIB_LOOPBACK'],8000),A).serve_forever()\n"
)


def start(practice):
    """A unit that answers on port 8000."""
    (practice.root / "srv/answer.py").write_text(SERVES)
    text = f"[Service]\nType=exec\nExecStart=/usr/bin/env python3 {practice.root}/srv/answer.py\n"
    (practice.root / "etc/systemd/system" / f"{UNIT}.service").write_text(text)
    host = open_host(practice.settings)
    try:
        assert host.run(("systemctl", "daemon-reload"), sudo=True).is_success
        start_unit(host, UNIT)
    finally:
        host.close()


@pytest.fixture(scope="module")
def fleet():
    """Three practice hosts; the unit runs on two of them."""
    with start_fleet(3) as running, ThreadPoolExecutor(2) as pool:
        list(pool.map(start, running.hosts[:2]))
        before = os.environ.get("OPSLIB_HOSTS")
        os.environ["OPSLIB_HOSTS"] = str(running.inventory)
        try:
            yield running
        finally:
            os.environ.pop("OPSLIB_HOSTS")
            os.environ.update({"OPSLIB_HOSTS": before} if before else {})


def test_all_hosts_are_watched_in_one_stream(fleet):
    """Each host's updates come with its name; the one without the unit is told once, and the others go on to ready."""
    table = HostsTable(fleet.aliases, UNIT)
    lines = [line for news in watch_hosts(fleet.aliases, UNIT, timeout_s=30) if news for line in table.take(news)]
    assert [table.state_of(host).value for host in fleet.aliases] == ["ok", "ok", "unknown"]
    assert sum(line.startswith("practice-3: systemd knows no unit") for line in lines) == 1
    assert table.summary == "2 ready, 1 not watched"
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [["practice-1", "ready"], ["practice-2", "ready"]]


def test_a_watch_that_is_closed_ends_on_every_host(fleet):
    """Closed after its first update, with hosts that go on and on: it returns, and the units go on."""
    updates = watch_hosts(fleet.aliases[:2], UNIT, goes_on=True)
    assert next(news for news in updates if news).update is not None
    updates.close()
    host = open_host(fleet.hosts[0].settings)
    assert show_unit(host, UNIT).active_state == "active"
    host.close()


def test_the_command_takes_hosts_and_one_unit(fleet, capsys):
    """--json: one document with each host's state; the exit code is that of the worst; a second name is refused."""
    assert call(["watch", "--hosts", "practice-1,practice-2", UNIT, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in document["hosts"]] == ["ready", "ready"]
    assert call(["watch", "--hosts", "practice", UNIT, "another"]) == 4
    assert "--hosts takes one UNIT" in capsys.readouterr().err
