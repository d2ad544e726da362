"""The tracker beside the shell loops of an operator, on a real Debian host: who sees a death when, at what cost.

A unit's main process kills itself every second or two and notes when; `opslib watch` and two loops (ssh, curl and
systemctl every second and every 15 seconds) look on at once, and what counts is the line on the screen. Then each looks
alone at a quiet unit, in turn, and the processor time of the whole host is compared; then the unit prints 100,000 lines
in ten seconds. Arguments: number of deaths (200), rounds of quiet (3). With the right to, all of it runs before
other work (`sched`: "rr"): what a neighbour computes is neither the tracker's nor the loops' doing.
"""

import json
import os
import platform
import re
import statistics
import sys
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.watch_host import (
    UNIT,
    host_cpu_s,
    looping,
    n_connections,
    peak_mib,
    put_unit,
    resident_mib,
    samples_percent,
    tracker_scope,
    tracking,
)
from tests.rig.debian import DebianHost, debian_host, install_standin

MAX_MEDIAN_S, MAX_P99_S, MAX_TRACEBACK_S = 0.3, 1.0, 1.0
MAX_CPU_PERCENT, MAX_SHARE, N_LINES, MAX_GROWN_MIB, MAX_GAP_S = 1.0, 0.2, 100_000, 150, 1.0
SETTLED_S = 6  # after a watch began: hello, first answers
DIES = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/python3 -c "import os,random,time; time.sleep(0.8+random.random()*0.8); now=time.time(); \\
print('(Worker_TP0 pid=1) ERROR 11-29 12:00:00 [x.py:1] WorkerProc hit an exception. %%.6f' %% now,flush=True); \\
open('/deaths','a').write('%%.6f\\\\n' %% now); os.kill(os.getpid(),9)"
Restart=always
RestartSec=100ms
LogRateLimitIntervalSec=1s
LogRateLimitBurst=1000000
"""
QUIET = "[Service]\nExecStart=/usr/bin/python3 -m http.server 8000\n"
BURST = f"""[Service]
ExecStart=/usr/bin/python3 -c "import time; time.sleep(5); began=time.time(); \\
[(print('INFO 11-29 12:00:00 [x.py:1] line %%d of a burst that is as long as such lines are' %% n), \\
time.sleep(max(0,began+n/{N_LINES // 10}-time.time())) if n%%500==0 else None) for n in range({N_LINES})]; \\
print('the last line, written in %%.1f s' %% (time.time()-began),flush=True); time.sleep(600)"
LogRateLimitIntervalSec=1s
LogRateLimitBurst=1000000
"""


def go_first() -> str:
    """Run before other work, with everything that is started from here; how it is scheduled."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return "other"
    return "rr"


def deaths_seen(debian: DebianHost, n: int) -> dict[str, object]:
    """Delays from a death to the line on the screen, for tracker and loops side by side."""
    debian.local_path("/deaths").unlink(missing_ok=True)
    put_unit(debian, DIES)
    exits: list[float] = []
    crashes: list[float] = []
    last_words: list[float] = []
    loop_1s: list[tuple[float, int]] = []
    loop_15s: list[tuple[float, int]] = []

    def take(at: float, line: str) -> None:
        if "  exit  " in line:
            exits.append(at)
        elif "  crash  " in line:
            crashes.append(at)
        elif said := re.search(r"hit an exception\. ([\d.]+)", line):
            last_words.append(at - float(said[1]))

    with looping(debian, 1, loop_1s), looping(debian, 15, loop_15s), tracking(debian, take) as pid:
        time.sleep(SETTLED_S)
        connections = n_connections(debian, pid)
        began = len(_deaths(debian))
        while len(_deaths(debian)) < began + n:
            time.sleep(0.5)
        watched = _deaths(debian)[began : began + n]
        time.sleep(16)
    numbers = range(began + 1, began + n + 1)
    debian.ssh("systemctl", "stop", UNIT)
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


def quiet_cost(debian: DebianHost, rounds: int) -> dict[str, object]:
    """Processor time of the whole host in percent of one core, above what it uses alone, for each way to look on.

    `tracker_samples_percent` are one-second samples of the tracker's login alone: sshd for it, program, journalctl,
    nvidia-smi.
    """
    put_unit(debian, QUIET)
    time.sleep(2)
    samples: list[float] = []
    percents: dict[str, list[float]] = {name: [] for name in ("alone", "tracker", "loop_1s", "loop_15s")}

    def note(name: str, act: object = None) -> None:
        began, before = time.monotonic(), host_cpu_s(debian)
        if isinstance(act, Path):
            samples.extend(samples_percent(act, 40))
        else:
            time.sleep(30 if name == "loop_15s" else 15)
        percents[name].append(100.0 * (host_cpu_s(debian) - before) / (time.monotonic() - began))

    for _ in range(rounds):
        time.sleep(SETTLED_S)  # what the last login started ends
        note("alone")
        with tracking(debian, lambda *_: None):
            time.sleep(SETTLED_S)
            note("tracker", tracker_scope(debian))
        with looping(debian, 1, []):
            time.sleep(1)
            note("loop_1s")
        with looping(debian, 15, []):
            time.sleep(1)
            note("loop_15s")
    alone = statistics.median(percents.pop("alone"))
    above = {f"{name}_percent": round(statistics.median(values) - alone, 2) for name, values in percents.items()}
    return {"host_alone_percent": round(alone, 2), **above, "tracker_samples_percent": spread(samples)}


def burst(debian: DebianHost) -> dict[str, object]:
    """100,000 lines in ten seconds: how many are shown of those that were stored, and what that costs."""
    heard: list[int] = []
    shown_at: list[float] = []
    last = ""
    ended = threading.Event()

    def take(at: float, line: str) -> None:
        nonlocal last
        if found := re.match(r" *[\d.]+  │ .*\] line (\d+) of a burst", line):
            heard.append(int(found[1]))
            shown_at.append(at)
        elif "the last line, written" in line:
            last = line
            ended.set()

    put_unit(debian, BURST)
    with tracking(debian, take) as pid:
        time.sleep(4)
        scope, before_mib, most_mib = tracker_scope(debian), resident_mib(pid), 0.0
        while not ended.wait(0.2) and time.monotonic() < 1e9:
            most_mib = max(most_mib, resident_mib(pid))
            if shown_at and time.time() - shown_at[-1] > 30:
                break
        program_mib = peak_mib(scope)
    asked = f"journalctl --unit={UNIT} --boot --output=cat | grep -c 'of a burst'"
    stored = debian.ssh("sh", "-c", asked, timeout_s=60)
    debian.ssh("systemctl", "stop", UNIT)
    written = re.search(r"written in ([\d.]+) s", last)
    return {
        "n_stored": int(stored.stdout),
        "n_heard": len(heard),
        "n_heard_twice": len(heard) - len(set(heard)),
        "is_in_order": heard == sorted(heard),
        "written_in_s": float(written[1]) if written else None,
        "shown_in_s": round(shown_at[-1] - shown_at[0], 1),
        "longest_gap_s": round(max(b - a for a, b in pairwise(shown_at)), 2),
        "grown_mib": round(most_mib - before_mib),
        "host_program_mib": round(program_mib),
    }


def main() -> int:
    """Print the result as JSON; 1 where a bound is passed."""
    n, rounds = (int(word) for word in (sys.argv[1:] + ["200", "3"][len(sys.argv) - 1 :]))
    sched, load = go_first(), os.getloadavg()[0]
    with debian_host("opslib-bench") as debian:
        install_standin(debian, "healthy")
        figures = {**quiet_cost(debian, rounds), **burst(debian), **deaths_seen(debian, n)}
    result = {
        "benchmark": "watch",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "sched": sched,
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        **figures,
    }
    result["failures"] = failures(result)
    print(json.dumps(result, indent=1))
    return 1 if result["failures"] else 0


def failures(result: dict[str, object]) -> list[str]:
    """The bounds that were passed."""
    sign, words, samples = (result[name] for name in ("first_sign_s", "last_words_s", "tracker_samples_percent"))
    assert isinstance(sign, dict)
    assert isinstance(words, dict)
    assert isinstance(samples, dict)

    def number(name: str) -> float:
        return float(str(result[name]))

    held = {
        "median of the first sign": sign["median"] < MAX_MEDIAN_S,
        "p99 of the first sign": sign["p99"] < MAX_P99_S,
        "last words of a worker": words["p99"] < MAX_TRACEBACK_S,
        "processor time, p99 of one-second samples": samples["p99"] < MAX_CPU_PERCENT,
        "processor time of the whole host": number("tracker_percent") < MAX_CPU_PERCENT,
        "a fifth of the loop": number("tracker_percent") <= MAX_SHARE * number("loop_1s_percent"),
        "one connection": result["ssh_connections"] == 1,
        "no line lost or doubled": result["n_heard"] == result["n_stored"] and not result["n_heard_twice"],
        "memory": number("grown_mib") < MAX_GROWN_MIB and number("host_program_mib") < MAX_GROWN_MIB,
        "something new on the screen each second": number("longest_gap_s") < MAX_GAP_S,
    }
    return [name for name, holds in held.items() if not holds]


if __name__ == "__main__":
    sys.exit(main())
