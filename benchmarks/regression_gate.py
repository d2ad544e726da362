"""How often the gate cries wolf, and how often it sleeps: known slow-downs against the noise of this machine.

A server of known truth is made slower by 0, 5, 10 and 20 %. Of each, 5 real runs of three repeats are held against
one real run at 0 %; then 50 runs are drawn from the recorded repeats (of all real runs at 0 %, scaled) and held
against a drawn run at 0 %. Counted is how often the gate says *worse*. Prints one JSON document, and with `--table`
the table of docs/decisions/regression-gate.md; exits with 1 where 0 % alarms in more than 2 of 50, or 20 % is missed
once. Takes about 3 min.
"""

import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_compare import GATING, compare_levels
from opslib.domain.host import HostSettings
from opslib.domain.load import LoadSpec, closed_levels
from opslib.hosts import open_host
from opslib.workflow.benchmark import run_benchmark

PROGRAM = Path(__file__).parents[1] / "tests" / "truth_server.py"
TRUTH = {"ttft_ms": 60.0, "itl_ms": 6.0}
SLOWER_PERCENT = (0, 5, 10, 20)
LEVELS, N_TOKENS, N_REPEATS = (1, 4), 32, 3
N_REAL, N_DRAWN = 5, 50
MAX_ALARMS_AT_0, MAX_MISSES_AT_20 = 2, 0
THRESHOLD_PERCENT = 10.0


@contextlib.contextmanager
def truth_server(slower_percent: float) -> Iterator[int]:
    """A server that takes so much longer for everything; gives its port."""
    options = {name: value * (1 + slower_percent / 100) for name, value in TRUTH.items()}
    argv = [sys.executable, str(PROGRAM), json.dumps(options)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def real_run(slower_percent: float) -> tuple[BenchmarkLevel, ...]:
    """The levels that one run of three repeats measures."""
    host = open_host(HostSettings(alias="local", address="local"))
    load = LoadSpec(levels=closed_levels(LEVELS), repeats=N_REPEATS, output_tokens=N_TOKENS, input_tokens=32)
    try:
        with truth_server(slower_percent) as port:
            return run_benchmark(host, port=port, model="good", load=load, deadline_s=120).levels
    finally:
        host.close()


def drawn_run(
    rng: np.random.Generator,
    recorded: Mapping[str, Sequence[Mapping[str, float]]],
    pattern: Sequence[BenchmarkLevel],
    slower: float,
) -> tuple[BenchmarkLevel, ...]:
    """A run whose repeats are drawn from those recorded at 0 %, and made slower by so much."""
    factor = 1 + slower / 100
    levels = []
    for level in pattern:
        pool = recorded[level.name]
        drawn = [pool[int(index)] for index in rng.integers(len(pool), size=N_REPEATS)]
        repeats = [
            {name: v / factor if "throughput" in name else v * factor for name, v in each.items()} for each in drawn
        ]
        levels.append(level.model_copy(update={"repeats": tuple(repeats)}))
    return tuple(levels)


def noise_of(recorded: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The spread between repeats at 0 %, in percent of the mean (one standard deviation)."""
    noise: dict[str, dict[str, float]] = {}
    for name, pool in recorded.items():
        values = {figure: np.array([repeat[figure] for repeat in pool]) for figure in GATING}
        noise[name] = {figure: round(float(100 * v.std(ddof=1) / v.mean()), 2) for figure, v in values.items()}
    return noise


def measure() -> dict[str, Any]:
    """All real runs in turn (interleaved, so that drift meets all alike), then the drawn ones."""
    baseline = real_run(0)
    real: dict[int, list[tuple[BenchmarkLevel, ...]]] = {percent: [] for percent in SLOWER_PERCENT}
    for _ in range(N_REAL):
        for percent in SLOWER_PERCENT:
            real[percent].append(real_run(percent))
    recorded = {
        level.name: [
            repeat for run in (baseline, *real[0]) for each in run if each.name == level.name for repeat in each.repeats
        ]
        for level in baseline
    }
    rng = np.random.default_rng(7)
    rows = []
    for percent in SLOWER_PERCENT:
        drawn = [
            compare_levels(
                drawn_run(rng, recorded, baseline, 0),
                drawn_run(rng, recorded, baseline, percent),
                threshold_percent=THRESHOLD_PERCENT,
            )
            for _ in range(N_DRAWN)
        ]
        seen = [compare_levels(baseline, run, threshold_percent=THRESHOLD_PERCENT) for run in real[percent]]
        rows.append(
            {
                "slower_percent": percent,
                "drawn_worse": sum(each.verdict == "worse" for each in drawn),
                "drawn": N_DRAWN,
                "real_worse": sum(each.verdict == "worse" for each in seen),
                "real": N_REAL,
                "real_verdicts": [each.verdict for each in seen],
            }
        )
    return {"rows": rows, "noise_percent": noise_of(recorded), "n_recorded": {k: len(v) for k, v in recorded.items()}}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rates as the page shows them."""
    lines = ["| slower by | says *worse*, drawn runs | says *worse*, real runs |", "| --- | --- | --- |"]
    lines += [
        f"| {row['slower_percent']} % | {row['drawn_worse']} of {row['drawn']} | {row['real_worse']} of {row['real']} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    began = time.monotonic()
    found = measure()
    by_percent = {row["slower_percent"]: row for row in found["rows"]}
    past = []
    if by_percent[0]["drawn_worse"] > MAX_ALARMS_AT_0:
        past.append(f"0 %: {by_percent[0]['drawn_worse']} alarms in {N_DRAWN}, at most {MAX_ALARMS_AT_0}")
    missed = (N_DRAWN - by_percent[20]["drawn_worse"]) + (N_REAL - by_percent[20]["real_worse"])
    if missed > MAX_MISSES_AT_20:
        past.append(f"20 %: missed {missed} of {N_DRAWN + N_REAL}")
    result = {
        "benchmark": "regression_gate",
        "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "n": {"real": N_REAL, "drawn": N_DRAWN, "repeats": N_REPEATS},
        "threshold_percent": THRESHOLD_PERCENT,
        "truth": {**TRUTH, "levels": LEVELS, "n_tokens": N_TOKENS},
        **found,
        "past_bound": past,
        "duration_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result, indent=1))
    if "--table" in sys.argv:
        print(table(found["rows"]), file=sys.stderr)
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
