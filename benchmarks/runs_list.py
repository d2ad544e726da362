"""How long `opslib runs` takes over 10,000 records: as a process of its own, with its index, and with ten new records.

The records are copies of one that lies in runs/examples, each with a name and a time of its own. Also told: how long
the index takes to be made, and the list without one.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N_RECORDS, N_NEW, N_RUNS = 10_000, 10, 5
MAX_LIST_S = 2.0
START = datetime(2025, 1, 1, tzinfo=UTC)
INDEX = ".index.sqlite"


def write_records(runs_dir: Path, numbers: range) -> None:
    """Records of one shape, an hour apart."""
    (source,) = sorted((ROOT / "runs" / "examples").glob("*-debian-*/record.json"))
    text = source.read_text("utf-8")
    known = json.loads(text)
    for number in numbers:
        at = START + timedelta(hours=number)
        folder = runs_dir / f"{at:%Y%m%dT%H%M%SZ}-gpu-{number % 20:02d}-vllm-tiny-90-deploy"
        folder.mkdir()
        changed = text.replace(known["started_at"], at.isoformat()).replace('"debian"', f'"gpu-{number % 20:02d}"')
        (folder / "record.json").write_text(changed, "utf-8")


def list_s(runs_dir: Path, *options: str) -> float:
    """Seconds for one `opslib runs` from the start of the process to its end."""
    command = [sys.executable, "-m", "opslib.cli", "runs", "--runs-dir", str(runs_dir), *options]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True, env={**os.environ})
    taken = time.monotonic() - began
    assert done.stdout.splitlines()
    return taken


def measure(runs_dir: Path) -> dict[str, float]:
    """Medians of N_RUNS, in seconds."""
    write_records(runs_dir, range(N_RECORDS))
    figures = {"index_build_s": list_s(runs_dir)}
    newest, every, with_new = [], [], []
    for turn in range(N_RUNS):
        newest.append(list_s(runs_dir))
        every.append(list_s(runs_dir, "--all"))
        first = N_RECORDS + turn * N_NEW
        write_records(runs_dir, range(first, first + N_NEW))
        with_new.append(list_s(runs_dir))
    found = {"newest_20_s": newest, "all_s": every, "with_10_new_s": with_new}
    return {name: round(value, 2) for name, value in figures.items()} | {
        name: round(statistics.median(times), 2) for name, times in found.items()
    }


def main() -> int:
    """Print the result as JSON; 1 where a list takes longer than the bound."""
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory))
        size = (Path(directory) / INDEX).stat().st_size
    result = {
        "benchmark": "runs_list",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "n": N_RUNS,
        "n_records": N_RECORDS,
        "index_bytes": size,
        **figures,
        "max_list_s": MAX_LIST_S,
    }
    print(json.dumps(result, indent=1))
    return 0 if max(figures["newest_20_s"], figures["all_s"], figures["with_10_new_s"]) <= MAX_LIST_S else 1


if __name__ == "__main__":
    sys.exit(main())
