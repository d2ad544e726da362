"""The tracker beside the shell loops of an operator, on a real Debian host: who sees a death when, at what cost.

A unit's main process kills itself every second or two and notes when; the tracker and two loops (ssh, curl and
systemctl every second and every 15 seconds) look on at once. Then each looks alone at a quiet unit, and the processor
time of the whole host is compared; then the unit prints 100,000 lines in ten seconds. Arguments: number of deaths
(200), seconds of quiet (40).
"""

import json
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opslib.domain.launch_events import JournalSeen
from opslib.domain.launch_record import LaunchUpdate
from opslib.domain.launch_status import FINAL, LaunchState
from opslib.hosts import open_host
from opslib.workflow.launch import watch_launch
from tests.rig.debian import DebianHost, debian_host, install_standin

MAX_MEDIAN_S, MAX_P99_S, MAX_TRACEBACK_S = 0.3, 1.0, 1.0
MAX_CPU_PERCENT, MAX_SHARE, N_LINES, MAX_GROWN_MIB = 1.0, 0.2, 100_000, 150
ON_AND_ON = FINAL - {LaunchState.CRASHED, LaunchState.READY}
LAST_WORDS = "WorkerProc hit an exception."
DIES = f"""[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/python3 -c "import os,random,time; time.sleep(0.8+random.random()*0.8); \\
print('(Worker_TP0 pid=1) ERROR 11-29 12:00:00 [x.py:1] {LAST_WORDS}',flush=True); \\
open('/deaths','a').write('%%.6f\\\\n' %% time.time()); os.kill(os.getpid(),9)"
Restart=always
RestartSec=100ms
LogRateLimitIntervalSec=0
"""
QUIET = "[Service]\nExecStart=/usr/bin/python3 -m http.server 8000\n"
BURST = f"""[Service]
ExecStart=/usr/bin/python3 -c "import time; time.sleep(1); \\
[(print('INFO 11-29 12:00:00 [x.py:1] line %%d of a burst that is as long as such lines are' %% n), \\
n %% 1000 or time.sleep(0.1)) for n in range({N_LINES})]; print('the last line',flush=True); time.sleep(600)"
LogRateLimitIntervalSec=1s
LogRateLimitBurst=1000000
"""
UNIT = "bench"


def put_unit(debian: DebianHost, text: str) -> None:
    """Install that text as the unit, and start it."""
    debian.ssh("systemctl", "stop", UNIT)
    debian.put_files({f"/etc/systemd/system/{UNIT}.service": (text.encode(), 0o644)})
    debian.ssh("systemctl", "daemon-reload")
    debian.ssh("systemctl", "start", UNIT)


@contextmanager
def _beside(run: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """`run` goes on in a thread while the block lasts; `ended` tells it that the block is over."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


@contextmanager
def tracking(debian: DebianHost, take: Callable[[float, LaunchUpdate], None]) -> Iterator[None]:
    """The tracker looks on while the block lasts."""
    host, ended = open_host(debian.settings), threading.Event()

    def run() -> None:
        for update in watch_launch(host, UNIT, port=8000, timeout_s=None, ends_at=ON_AND_ON):
            take(time.time(), update)
            if ended.is_set():
                return

    try:
        with _beside(run, ended):
            yield
    finally:
        host.close()


@contextmanager
def looping(debian: DebianHost, every_s: float, seen: list[tuple[float, int]]) -> Iterator[None]:
    """An operator's loop: ssh, curl and systemctl; `seen` gets when the answer came and what NRestarts was."""
    ended = threading.Event()
    curl = "curl -s -m 1 -o /dev/null localhost:8000/health"
    asked = ("sh", "-c", f"{curl}; systemctl is-active {UNIT}; systemctl show -p NRestarts {UNIT}")

    def run() -> None:
        while not ended.is_set():
            text = debian.ssh(*asked).stdout
            n = [line.partition("=")[2] for line in text.splitlines() if line.startswith("NRestarts=")]
            if n:
                seen.append((time.time(), int(n[0])))
            ended.wait(every_s)

    with _beside(run, ended):
        yield


def host_cpu_s(debian: DebianHost) -> float:
    """Processor seconds that the host's processes have used so far, those that have ended included."""
    return sum(sum(times) for times in _ticks(debian).values()) / 100.0


def _ticks(debian: DebianHost) -> dict[int, tuple[int, ...]]:
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), tuple(map(int, fields[11:15]))
    inside = {debian.pid}
    while grown := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= grown
    return {pid: ticks[pid] for pid in inside - {debian.pid} if pid in ticks}


def tracker_cpu_percent(debian: DebianHost, seconds: int) -> list[float]:
    """One-second samples of what the tracker's own processes use on the host, their ended children included."""
    samples, before = [], _tracker_ns(debian)
    for _ in range(seconds):
        time.sleep(1.0)
        now = _tracker_ns(debian)
        samples.append(max(0.0, (now - before) / 1e7))
        before = now
    return samples


def _tracker_ns(debian: DebianHost) -> float:
    total = 0.0
    for pid, ticks in _ticks(debian).items():
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            spent = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
        if b"opslib" in argv or b"--follow" in argv or b"--loop-ms" in argv:
            total += spent + sum(ticks[2:]) * 1e7
    return total


def deaths_seen(debian: DebianHost, n: int) -> dict[str, object]:
    """Delays from a death to the event, for tracker and loops side by side."""
    put_unit(debian, DIES)
    signs: list[tuple[float, str]] = []
    last_words: list[float] = []
    loop_1s: list[tuple[float, int]] = []
    loop_15s: list[tuple[float, int]] = []

    def take(at: float, update: LaunchUpdate) -> None:
        signs.extend((at, change.what) for change in update.changes if change.what in {"exit", "crash"})
        if isinstance(update.event, JournalSeen) and LAST_WORDS in update.event.entry.message:
            logged_at = update.event.entry.realtime_at
            last_words.append(at - logged_at.timestamp() if logged_at else 9.9)

    with looping(debian, 1, loop_1s), looping(debian, 15, loop_15s), tracking(debian, take):
        time.sleep(2.0)
        connections = n_connections(debian)
        began = len(_deaths(debian))
        while len(_deaths(debian)) < began + n:
            time.sleep(0.5)
        watched = _deaths(debian)[began : began + n]
        time.sleep(16)
        numbers = range(began + 1, began + n + 1)
    exits = [at for at, what in signs if what == "exit"]
    crashes = [at for at, what in signs if what == "crash"]
    return {
        "n_deaths": len(watched),
        "first_sign_s": spread([after(exits, at) - at for at in watched]),
        "verdict_s": spread([after(crashes, at) - at for at in watched]),
        "last_words_s": spread(last_words),
        "loop_1s": spread([seen_by(loop_1s, k) - at for k, at in zip(numbers, watched, strict=True)]),
        "loop_15s": spread([seen_by(loop_15s, k) - at for k, at in zip(numbers, watched, strict=True)]),
        "ssh_connections": connections,
    }


def _deaths(debian: DebianHost) -> list[float]:
    path = debian.local_path("/deaths")
    return [float(word) for word in path.read_text().split()] if path.exists() else []


def after(times: list[float], at: float) -> float:
    """The first of the times that is not before `at`."""
    return min((time for time in times if time >= at - 0.002), default=at + 99)


def seen_by(loop: list[tuple[float, int]], n_restarts: int) -> float:
    """When the loop first knew of so many restarts."""
    return next((at for at, n in loop if n >= n_restarts), time.time() + 99)


def n_connections(debian: DebianHost) -> int:
    """Connections of this process to the host's sshd."""
    text = subprocess.run(
        ["ss", "-Htnp", "state", "established", "dst", f"{debian.address}:22"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sum(f"pid={__import__('os').getpid()}," in line for line in text.splitlines())


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values) or [99.0]
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "n": len(values),
        "median": round(statistics.median(ordered), 4),
        "p99": round(p99, 4),
        "max": round(ordered[-1], 4),
    }


def quiet_cost(debian: DebianHost, seconds: int) -> dict[str, object]:
    """Processor time of the whole host in percent of one core, above what it uses alone, for each way to look on."""
    put_unit(debian, QUIET)
    time.sleep(2)

    def percent() -> float:
        began, before = time.monotonic(), host_cpu_s(debian)
        time.sleep(seconds)
        return 100.0 * (host_cpu_s(debian) - before) / (time.monotonic() - began)

    idle = percent()
    with tracking(debian, lambda *_: None):
        time.sleep(4)
        tracker = percent() - idle
        samples = sorted(tracker_cpu_percent(debian, seconds))
    with looping(debian, 1, []):
        loop_1s = percent() - idle
    with looping(debian, 15, []):
        loop_15s = percent() - idle
    return {
        "host_alone_percent": round(idle, 2),
        "tracker_percent": round(tracker, 2),
        "tracker_samples_percent": {
            "median": round(statistics.median(samples), 2),
            "p90": round(samples[int(0.9 * len(samples))], 2),
            "max": round(samples[-1], 2),
            "mean": round(statistics.mean(samples), 2),
        },
        "loop_1s_percent": round(loop_1s, 2),
        "loop_15s_percent": round(loop_15s, 2),
    }


def burst(debian: DebianHost) -> dict[str, object]:
    """100,000 lines in ten seconds: how many arrive of those that were stored, and what that costs here."""
    lines: set[str] = set()
    counts = {"heard": 0}
    ended = threading.Event()

    def take(_: float, update: LaunchUpdate) -> None:
        if isinstance(update.event, JournalSeen) and update.event.entry.identifier == "python3":
            counts["heard"] += 1
            lines.add(update.event.entry.cursor)
            if update.event.entry.message == "the last line":
                ended.set()

    debian.ssh("systemctl", "stop", UNIT)
    put_unit(debian, "[Service]\nExecStart=/bin/sleep 1\n")
    time.sleep(1.5)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cursors_mib = 0.0
    with tracking(debian, take):
        time.sleep(1)
        began = time.monotonic()
        put_unit(debian, BURST)
        ended.wait(120)
        took_s = time.monotonic() - began
    grown_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib - cursors_mib
    debian.ssh("systemctl", "stop", UNIT)
    stored = debian.ssh(
        "sh",
        "-c",
        f"journalctl --unit={UNIT} --identifier=python3 --output=cat | grep -c 'of a burst\\|the last line'",
        timeout_s=60,
    )
    return {
        "n_stored": int(stored.stdout),
        "n_heard": counts["heard"],
        "n_heard_twice": counts["heard"] - len(lines),
        "until_last_line_s": round(took_s, 1),
        "grown_mib": round(grown_mib),
    }


def main() -> int:
    """Print the result as JSON; 1 where a bound is passed."""
    n, quiet_s = (int(word) for word in (sys.argv[1:] + ["200", "40"][len(sys.argv) - 1 :]))
    with debian_host("opslib-bench") as debian:
        install_standin(debian, "healthy")
        cost = quiet_cost(debian, quiet_s)
        flood = burst(debian)
        debian.local_path("/deaths").unlink(missing_ok=True)
        seen = deaths_seen(debian, n)
    result = {
        "benchmark": "watch",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        **seen,
        **cost,
        **flood,
    }
    result["failures"] = failures(result)
    print(json.dumps(result, indent=1))
    return 1 if result["failures"] else 0


def failures(result: dict[str, object]) -> list[str]:
    """The bounds that were passed."""
    get: dict[str, object] = result
    sign, words = get["first_sign_s"], get["last_words_s"]
    samples = get["tracker_samples_percent"]
    assert isinstance(sign, dict)
    assert isinstance(words, dict)
    assert isinstance(samples, dict)
    held = {
        "median of the first sign": sign["median"] < MAX_MEDIAN_S,
        "p99 of the first sign": sign["p99"] < MAX_P99_S,
        "last words of a worker": words["p99"] < MAX_TRACEBACK_S,
        "processor time": samples["mean"] < MAX_CPU_PERCENT and samples["median"] < MAX_CPU_PERCENT,
        "a fifth of the loop": float(str(get["tracker_percent"])) <= MAX_SHARE * float(str(get["loop_1s_percent"])),
        "one connection": get["ssh_connections"] == 1,
        "no line lost or doubled": get["n_heard"] == get["n_stored"] and not get["n_heard_twice"],
        "memory": float(str(get["grown_mib"])) < MAX_GROWN_MIB,
    }
    return [name for name, holds in held.items() if not holds]


if __name__ == "__main__":
    sys.exit(main())
