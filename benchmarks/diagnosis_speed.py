"""How long a verdict on a journal of two million lines takes, and how much memory the process needs for it.

Writes the journal into a temporary directory (about 0.8 GB, removed afterwards), lets `opslib diagnose --json` read it
in a process of its own, and prints one JSON document; exits with 1 past a bound: 10 s, 500 MB. The bound is on the
processor's seconds, since the machine may have other work; those on the wall stand beside them. Pass a number for
fewer lines.
"""

import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_LINES = 2_000_000
BOUNDS = {"processor_s": 10.0, "max_rss_mb": 500.0}
_DISK_MARGIN_BYTES = 2 << 30
_BLOCK = 20_000
_EXPECTED = "gpu-memory/sampler-warmup"
_CHILD = "import sys; from opslib.cli.main import main; sys.argv[0] = 'opslib'; main()"
_SERVING = (
    '(APIServer pid=10) INFO:     10.0.0.%d:4242 - "POST /v1/completions HTTP/1.1" 200 OK',
    "(APIServer pid=10) INFO 11-29 12:00:00 [loggers.py:248] Engine 000: Avg prompt throughput: %d.0 tokens/s",
    "(APIServer pid=10) INFO 11-29 12:00:00 [async_llm.py:252] Added request chatcmpl-%d.",
    "(EngineCore_DP0 pid=11) DEBUG 11-29 12:00:00 [core.py:301] step %d",
)
_CRASH = (
    "(Worker_TP0 pid=12) ERROR 11-29 15:31:48 [multiproc_executor.py:671] WorkerProc failed to start.",
    "(Worker_TP0 pid=12) ERROR 11-29 15:31:48 [multiproc_executor.py:671] Traceback (most recent call last):",
    (
        "(Worker_TP0 pid=12) ERROR 11-29 15:31:48 [x.py:671] RuntimeError: CUDA out of memory occurred when warming up "
        "sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`."
    ),
    "(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)


def entry(message: str, invocation: str, *, at: int, identifier: str = "vllm", pid: str = "10") -> bytes:
    """One journal object as `journalctl -o json --all` writes it."""
    fields = {
        "MESSAGE": message,
        "__REALTIME_TIMESTAMP": str(1_764_000_000_000_000 + at),
        "PRIORITY": "6",
        "_PID": pid,
        "SYSLOG_IDENTIFIER": identifier,
        "_SYSTEMD_UNIT": "vllm.service",
        "_SYSTEMD_INVOCATION_ID": invocation,
        "_TRANSPORT": "stdout" if identifier == "vllm" else "journal",
        "_BOOT_ID": "0" * 32,
    }
    return json.dumps(fields).encode() + b"\n"


def write_journal(path: Path, n_lines: int) -> None:
    """A unit that served for weeks, was restarted, and whose new start failed."""
    first, second = "a" * 32, "b" * 32
    block = b"".join(entry(_SERVING[i % len(_SERVING)] % (i % 250), first, at=i) for i in range(_BLOCK))
    with path.open("wb") as file:
        file.write(entry("(APIServer pid=10) INFO:     Application startup complete.", first, at=0))
        for _ in range(n_lines // _BLOCK):
            file.write(block)
        file.write(b"".join(entry(line, second, at=i) for i, line in enumerate(_CRASH)))
        end = "vllm.service: Main process exited, code=exited, status=1/FAILURE"
        file.write(entry(end, second, at=9, identifier="systemd", pid="1"))


def measure(path: Path) -> tuple[float, float, float, str]:
    """Seconds on the wall, of the processor, megabytes at most (resident), and the cause that the process finds."""
    began = time.perf_counter()
    argv = [sys.executable, "-c", _CHILD, "diagnose", "--json", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        answer = child.stdout.read()
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
    processor_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, processor_s, usage.ru_maxrss / 1024, json.loads(answer)["cause"]


def main() -> int:
    """Measures, prints, and says whether both bounds hold."""
    n_lines = int(sys.argv[1]) if len(sys.argv) > 1 else N_LINES
    with tempfile.TemporaryDirectory() as directory:
        if shutil.disk_usage(directory).free < n_lines * 500 + _DISK_MARGIN_BYTES:
            print(json.dumps({"benchmark": "diagnosis_speed", "error": f"not enough room in {directory}"}))
            return 3
        path = Path(directory) / "journal.jsonl"
        write_journal(path, n_lines)
        size_bytes = path.stat().st_size
        runs = [measure(path) for _ in range(2)]
    values = {"processor_s": round(max(run[1] for run in runs), 2), "max_rss_mb": round(max(run[2] for run in runs), 1)}
    past = [name for name, bound in BOUNDS.items() if values[name] > bound]
    past += [] if all(run[3] == _EXPECTED for run in runs) else ["cause"]
    document = {
        "benchmark": "diagnosis_speed",
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "system": platform.system(), "processor": platform.machine()},
        "n_lines": n_lines,
        "size_bytes": size_bytes,
        "wall_s": [round(run[0], 2) for run in runs],
        "figures": values,
        "past_bounds": past,
    }
    print(json.dumps(document, indent=1))
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
