"""How long `opslib --help` takes, beside a bare Python started in the same run.

The bound is on the ratio of medians of interleaved runs, so that a slow machine does not fail it.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime

N_RUNS = 15
MAX_RATIO = 8.0  # seen: 0.06 s against 0.015 s
COMMANDS = {
    "bare_python": [sys.executable, "-c", "pass"],
    "opslib_help": [sys.executable, "-m", "opslib.cli", "--help"],
}


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Print the result as JSON; 1 where the bound is passed."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(N_RUNS):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    medians = {f"{name}_s": round(statistics.median(values), 4) for name, values in taken.items()}
    ratio = medians["opslib_help_s"] / medians["bare_python_s"]
    result = {
        "benchmark": "cli_start",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "n": N_RUNS,
        **medians,
        "ratio": round(ratio, 2),
        "max_ratio": MAX_RATIO,
    }
    print(json.dumps(result, indent=1))
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
