"""Fifty practice hosts on this machine's own processors: how long a survey takes, and what watching all of them costs.

The survey is the command `opslib survey --json` as a process of its own, of 10 and of 50 hosts in turn, with its peak
memory; the watch is a process that watches one unit on every host, which prints four lines a second, and is told of
those whose process is killed meanwhile. The servers (one process for all 50) and all that runs on the practice hosts
share the processors. Arguments: number of hosts (50), seconds of watching (30).
"""

import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opslib.app.fleet_watch import watch_hosts
from opslib.hosts import open_host
from opslib.rehearsal.fleet import RehearsalFleet, start_fleet
from opslib.rehearsal.server import PracticeHost

FEW, N_RUNS, N_KILLED = 10, 3, 5
MAX_SURVEY_S, MAX_MIB, MAX_CPU_PERCENT, MAX_SEEN_S = 30.0, 1024, 100.0, 2.0
UNIT = "vllm-watched"
LINES_PER_S = 4  # that each unit prints: a launch prints 2 to 10, an engine that serves one in ten seconds
SERVES = f"""\
import http.server, os, threading, time
def print_on():
    while True:
        print("INFO 11-29 12:00:00 [loggers.py:1] Engine 000: Avg generation throughput: 1.0 tokens/s", flush=True)
        time.sleep(1 / {LINES_PER_S})
threading.Thread(target=print_on, daemon=True).start()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer((os.environ["OPSLIB_LOOPBACK"], 8000), Answer).serve_forever()
"""


def survey(aliases: list[str]) -> dict[str, float]:
    """Seconds, peak MiB and processor seconds of one `opslib survey` of these hosts, all of which have to answer."""
    began = time.monotonic()
    command = [sys.executable, "-m", "opslib.cli", "survey", "--json", *aliases]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    document = json.loads(child.stdout.read())
    _, _, usage = os.wait4(child.pid, 0)
    took_s = time.monotonic() - began
    assert [host["host"] for host in document["hosts"] if host["identity"]] == aliases
    states = [host["state"] for host in document["hosts"]]
    return {
        "s": took_s,
        "mib": usage.ru_maxrss / 1024,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "n_not_ok": sum(state != "ok" for state in states),
    }


def put_unit(host: PracticeHost) -> None:
    """A unit that answers on port 8000, started."""
    program = host.root / "srv" / "answer.py"
    program.write_text(SERVES)
    text = f"[Service]\nType=exec\nExecStart=/usr/bin/env python3 {program}\nRestart=always\nRestartSec=1\n"
    (host.root / "etc/systemd/system" / f"{UNIT}.service").write_text(text)
    opened = open_host(host.settings)
    try:
        for words in (("daemon-reload",), ("start", "--", UNIT)):
            assert opened.run(("systemctl", *words), sudo=True).is_success
    finally:
        opened.close()


def watch(aliases: list[str], seconds: float) -> dict[str, object]:
    """What watching all of them costs this process, in percent of one processor, once every host has been seen."""
    known: dict[str, str] = {}
    crashes: dict[str, float] = {}
    began, cpu_s, n_updates = 0.0, 0.0, 0
    updates = watch_hosts(aliases, UNIT, goes_on=True)
    for item in updates:
        now = time.monotonic()
        if item is not None and item.update is not None:
            known[item.host] = item.update.status.state.value
            n_updates += bool(began)
            if began and any(change.what == "exit" for change in item.update.changes):
                crashes.setdefault(item.host, time.time())
        if not began and len(known) == len(aliases) and all(state == "ready" for state in known.values()):
            began, cpu_s = now, time.process_time()
            print("watching", flush=True)
        if began and now - began > seconds:
            break
    spent = 100.0 * (time.process_time() - cpu_s) / (time.monotonic() - began)
    updates.close()  # type: ignore[attr-defined]
    return {
        "watch_cpu_percent": round(spent, 1),
        "watch_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "watch_updates_per_s": round(n_updates / seconds, 1),
        "crashes": crashes,
    }


def watched(fleet: RehearsalFleet, seconds: float) -> dict[str, object]:
    """The same as a process of its own, while the units of some hosts are killed; and what it costs the hosts."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put_unit, fleet.hosts))
    time.sleep(2.0)
    alone = tree_cpu_s(fleet.process_id)
    time.sleep(5.0)
    alone = (tree_cpu_s(fleet.process_id) - alone) / 5.0
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, __file__, "--watch", str(seconds)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "watching\n"
    ready_s = time.monotonic() - began
    before, began = tree_cpu_s(fleet.process_id), time.monotonic()
    killed: dict[str, float] = {}
    time.sleep(seconds / 2)
    quiet = 100.0 * ((tree_cpu_s(fleet.process_id) - before) / (time.monotonic() - began) - alone)
    for host in random.Random(0).sample(fleet.hosts, N_KILLED):
        opened = open_host(host.settings)
        pid = opened.run(("systemctl", "show", "--property=MainPID", "--value", "--", UNIT)).text.strip()
        opened.close()
        killed[host.settings.alias] = time.time()
        host.drill("kill", "SIGKILL", pid)
    found = json.loads(child.stdout.read())
    child.wait()
    seen = {alias: found["crashes"].get(alias, 1e12) - at for alias, at in killed.items()}
    del found["crashes"]
    return {
        **found,
        "all_ready_after_s": round(ready_s, 1),
        "hosts_cpu_percent_each": round(quiet / len(fleet.hosts), 2),
        "slowest_death_seen_s": round(max(seen.values()), 2),
    }


def tree(pid: int) -> Iterator[int]:
    """A process and everything below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    inside = {pid}
    while grown := {child for child, parent in parents.items() if parent in inside} - inside:
        inside |= grown
    yield from inside


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of a process tree so far, ended children included."""
    ticks = 0
    for each in tree(pid):
        try:
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def busiest(fleet: RehearsalFleet, aliases: list[str]) -> float:
    """The most memory in MiB that command, servers and all that runs on the hosts had at once during a survey."""
    most = 0.0
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(survey, aliases)
        while not asked.done():
            most = max(most, tree_mib(os.getpid()))
            time.sleep(0.3)
        asked.result()
    assert fleet.process_id in tree(os.getpid())
    return most


def tree_mib(pid: int) -> float:
    """Memory of a process tree, what is shared counted once."""
    total = 0
    for each in tree(pid):
        try:
            rows = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def measure(n_hosts: int, seconds: float) -> dict[str, object]:
    """All figures."""
    began = time.monotonic()
    with start_fleet(n_hosts) as fleet:
        start_s = time.monotonic() - began
        os.environ["OPSLIB_HOSTS"] = str(fleet.inventory)
        os.environ["OPSLIB_RUNS"] = str(fleet.root / "runs")
        aliases = list(fleet.aliases)
        servers_mib = tree_mib(fleet.process_id)
        busy_mib = busiest(fleet, aliases)
        runs = [(survey(aliases[:FEW]), survey(aliases)) for _ in range(N_RUNS)]
        few, all_of_them = ([run[at] for run in runs] for at in (0, 1))
        return {
            "n_hosts": n_hosts,
            "fleet_start_s": round(start_s, 1),
            "servers_mib": round(servers_mib),
            "all_processes_peak_mib": round(busy_mib),
            f"survey_of_{FEW}_s": median(few, "s"),
            f"survey_of_{n_hosts}_s": median(all_of_them, "s"),
            "times_as_long": round(median(all_of_them, "s") / median(few, "s"), 2),
            "survey_peak_mib": round(max(run["mib"] for run in all_of_them)),
            "survey_cpu_s": median(all_of_them, "cpu_s"),
            "n_not_ok": max(run["n_not_ok"] for run in all_of_them),
            **watched(fleet, seconds),
        }


def median(runs: list[dict[str, float]], name: str) -> float:
    """The median of one figure."""
    return round(statistics.median(run[name] for run in runs), 2)


def failures(result: dict[str, object]) -> list[str]:
    """The bounds that were passed."""
    n = int(str(result["n_hosts"]))
    figures = {name: float(str(value)) for name, value in result.items() if isinstance(value, int | float)}
    held = {
        "time of a survey": figures[f"survey_of_{n}_s"] < MAX_SURVEY_S,
        "memory of everything": figures["all_processes_peak_mib"] < MAX_MIB,
        "no worse than linear": figures["times_as_long"] <= n / FEW,
        "every host ok": not figures["n_not_ok"],
        "processor of a watch": figures["watch_cpu_percent"] < MAX_CPU_PERCENT,
        "a death is seen": figures["slowest_death_seen_s"] < MAX_SEEN_S,
    }
    return [name for name, holds in held.items() if not holds]


def main() -> int:
    """Print the result as JSON; 1 where a bound is passed."""
    if sys.argv[1:2] == ["--watch"]:
        from opslib.app.survey import chosen_aliases  # noqa: PLC0415 - of the fleet's inventory

        print(json.dumps(watch(list(chosen_aliases(("all",))), float(sys.argv[2]))))
        return 0
    n_hosts, seconds = (int(word) for word in (sys.argv[1:] + ["50", "30"][len(sys.argv) - 1 :]))
    result = {
        "benchmark": "fleet",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "n": N_RUNS,
        **measure(n_hosts, seconds),
        "max_survey_s": MAX_SURVEY_S,
        "max_mib": MAX_MIB,
        "max_watch_cpu_percent": MAX_CPU_PERCENT,
    }
    result["failures"] = failures(result)
    print(json.dumps(result, indent=1))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
