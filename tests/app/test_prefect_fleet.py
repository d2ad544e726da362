"""Prefect with its embedded server, two workers and eight practice hosts: a worker is killed in the middle of it."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opslib.domain.lock import LockHolder
from opslib.hosts.inventory import load_inventory
from opslib.hosts.open import open_host
from opslib.records.index import list_records
from opslib.records.lock import hold_controller_lock
from opslib.rehearsal.fleet import start_fleet
from opslib.workflow.lock import hold_lock
from opslib.workflow.unit_found import gather_found

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-fleet" / "bin"
UNIT = "vllm-minimax"
PARAMETERS = {"concurrency_levels": [1], "benchmark_repeats": 1, "requests_per_stream": 1, "output_tokens": 4}
FINAL = {"COMPLETED", "FAILED", "CANCELLED"}
WAIT_S = 900
_MIDDLE = ("plan-unit", "confirm", "install", "replace")  # what was answered last before and while it launches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (BIN / "prefect").exists(), reason="needs opslib[fleet]: make setup-fleet"),
]


class Site:
    """Prefect on a port of its own, its workers by name, and the practice hosts that they deploy."""

    def __init__(self, place: Path, inventory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.place, self.runs = place, place / "runs"
        self.address = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "OPSLIB_"))},
            "PREFECT_HOME": str(place / "prefect"),
            "PREFECT_API_URL": f"{self.address}/api",
            "OPSLIB_RUNS": str(self.runs),
            "OPSLIB_HOSTS": str(inventory),
            "OPSLIB_LOCKS": str(place / "locks"),
            "DO_NOT_TRACK": "1",
        }

    def start(self, name: str, *words: str) -> None:
        with (self.place / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / "opslib", "fleet", *words],
                env=self.environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/api{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def until(self, what: str, found, seconds: float = WAIT_S):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError):
                if answer := found():
                    return answer
            time.sleep(1)
        logs = "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in self.place.glob("*.log"))
        raise AssertionError(f"{what}: not within {seconds} s\n{logs}")

    def flow_runs(self) -> list[dict]:
        found: list[dict] = self.ask("/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return found

    def close(self) -> None:
        for process in reversed(list(self.processes.values())):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                for pid in tree(process.pid):
                    kill(pid)
                process.wait(20)


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path, monkeypatch):
    with start_fleet(8, root=tmp_path / "fleet") as fleet:
        monkeypatch.setenv("OPSLIB_HOSTS", str(fleet.inventory))
        monkeypatch.setenv("OPSLIB_LOCKS", str(tmp_path / "locks"))
        site = Site(tmp_path, fleet.inventory)
        try:
            site.start("server", "server", "--port", str(site.port))
            site.until("the server", lambda: site.ask("/health"), 120)
            for name in ("a", "b"):
                site.start(name, "worker", "--name", name)
            site.until("both workers", lambda: len(online(site)) == 2, 120)
            yield site
        finally:
            site.close()


def online(site: Site) -> list[dict]:
    found = site.ask("/work_pools/opslib/workers/filter", {})
    return [worker for worker in found if worker["status"] == "ONLINE"]


def submit(site: Site, hosts: list[str]) -> str:
    """Begin a fleet by Prefect's own command; the id of its flow run."""
    words = ["runbook=deploy", f"hosts={json.dumps(hosts)}", f"parameters={json.dumps(PARAMETERS)}"]
    command = [BIN / "prefect", "deployment", "run", "opslib-fleet/opslib"]
    command += [part for word in words for part in ("-p", word)]
    subprocess.run(command, env=site.environment, cwd=site.place, check=True, capture_output=True)
    return site.flow_runs()[0]["id"]


def in_the_middle(site: Site) -> bool:
    """Whether at least four hosts have begun, and two of them are in the middle of their deploy."""
    under_way = running(site)
    return len(under_way) >= 4 and sum(entry.last_section in _MIDDLE for entry in under_way) >= 2


def running(site: Site):
    return [entry for entry in list_records(site.runs) if entry.status == "running"]


def busier(site: Site) -> int:
    """The worker that has begun more."""
    return max((site.processes[name].pid for name in ("a", "b")), key=lambda pid: len(tree(pid)))


@pytest.mark.parametrize("what", ["all that it runs", "its process alone"])
def test_a_killed_worker_leaves_no_host_without_its_one_end(site, what):
    """Every host ends with one truthful outcome, none is deployed twice at once, and no lock or limit stays taken."""
    fleet = submit(site, ["practice"])
    site.until("hosts in the middle", lambda: in_the_middle(site), 300)
    victim = busier(site)
    killed = tree(victim) if what == "all that it runs" else [victim]
    assert what == "its process alone" or len(killed) > 4
    for pid in killed:
        kill(pid)
    killed_at = datetime.now(UTC)
    site.until("the fleet's end", lambda: site.ask(f"/flow_runs/{fleet}")["state_type"] in FINAL)
    runs = {run["name"].split()[0]: run for run in site.flow_runs() if run["id"] != fleet}
    hosts = list(load_inventory().hosts)
    assert sorted(runs) == sorted(hosts)
    assert {host: run["state_name"] for host, run in runs.items()} == dict.fromkeys(hosts, "Completed")
    assert site.ask(f"/flow_runs/{fleet}")["state"]["message"] == "8 completed"
    assert_one_end_each(site, hosts, killed_at, was_lost=what == "all that it runs")
    assert_nothing_is_held(site, hosts)
    look_at(site, fleet)


def assert_one_end_each(site: Site, hosts: list[str], killed_at: datetime, *, was_lost: bool) -> None:
    """Of each host one record came to an outcome; whatever was begun before had ended, or was killed, before it began."""
    n_killed = 0
    for host in hosts:
        *before, last = sorted((e for e in list_records(site.runs) if e.host == host), key=lambda e: e.started_at)
        assert (last.status, last.state) == ("finished", "ok"), last
        assert [entry.status for entry in before] == ["interrupted"] * len(before), before
        assert not before or last.started_at > killed_at
        assert all(entry.ended_at is None or entry.ended_at <= last.started_at for entry in before), before
        n_killed += len(before)
        with_host = open_host(load_inventory().settings(host))
        try:
            assert gather_found(with_host, UNIT).is_serving, host
        finally:
            with_host.close()
    assert n_killed >= 2 or not was_lost


def assert_nothing_is_held(site: Site, hosts: list[str]) -> None:
    """Anybody may take the locks of host and controller, no limit of Prefect's is occupied, no task reads as running."""
    holder = LockHolder(user="t", controller="t", process_id=1, runbook="t", record="t", since=datetime.now(UTC))
    with ExitStack() as stack:
        for host in hosts:
            settings = load_inventory().settings(host)
            opened = open_host(settings)
            stack.callback(opened.close)
            stack.enter_context(hold_lock(opened, UNIT, holder))
            stack.enter_context(hold_controller_lock(settings, UNIT, holder))
    limits = {limit["name"]: limit["active_slots"] for limit in site.ask("/v2/concurrency_limits/filter", {})}
    assert limits == {f"opslib-host-{host}": 0 for host in hosts}
    tasks = site.ask("/task_runs/filter", {})
    assert {task["state_type"] for task in tasks} <= {"COMPLETED", "CRASHED"}
    assert running(site) == []


def look_at(site: Site, fleet: str) -> None:
    """The screen shows the fleet and its hosts, and asks for nothing from elsewhere; pictures go to $OPSLIB_SHOTS."""
    from tests.browser.lab import CHROMIUM, chromium

    if not Path(CHROMIUM).exists():
        return
    with chromium() as browser:
        page, outside = browser.new_page(viewport={"width": 1280, "height": 1000}), []
        page.on("request", lambda request: outside.append(request.url))
        page.goto(f"{site.address}/runs/flow-run/{fleet}")
        page.get_by_text("opslib-fleet").first.wait_for(timeout=60_000)
        page.wait_for_timeout(4000)
        shoot(page, "prefect-fleet")
        page.goto(f"{site.address}/runs")
        page.get_by_text("practice-8 90-deploy").first.wait_for(timeout=60_000)
        shoot(page, "prefect-runs")
    assert not [url for url in outside if not url.startswith((site.address, "data:", "blob:"))]


def shoot(page, name: str) -> None:
    if os.environ.get("OPSLIB_SHOTS"):
        page.screenshot(path=Path(os.environ["OPSLIB_SHOTS"]) / f"{name}.png")
