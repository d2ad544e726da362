"""How far the load generator's times are from a server's own truth, and what it costs in CPU.

A server in a child process (ttft 200 ms, itl 10 ms, 128 tokens) logs when it really wrote. At concurrency 8 and 32
the load generator's mean ttft and mean itl are held against that log; medians of three runs, interleaved.
Prints one JSON document; exits with 1 where a figure is past its bound. Takes about 25 s.
"""

import contextlib
import datetime as dt
import io
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opslib.onhost import loadgen

PROGRAM = Path(__file__).parents[1] / "tests" / "truth_server.py"
TRUTH = {"ttft_ms": 200, "itl_ms": 10}
N_TOKENS, N_RUNS = 128, 3
# (ttft_error_ms, itl_error_ms, cpu_ms_per_1000_tokens) at each concurrency
BOUNDS = {8: (3.0, 0.05, None), 32: (6.0, 0.05, 100.0)}


@contextlib.contextmanager
def truth_server() -> Iterator[int]:
    """A server of known truth; gives its port."""
    argv = [sys.executable, str(PROGRAM), json.dumps(TRUTH)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def truth_of(port: int) -> dict[str, list[float]]:
    """What the server says it did."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(b"GET /truth HTTP/1.1\r\n\r\n")
        text = b""
        while not text.endswith(b"}"):
            text += link.recv(1 << 20)
    return dict(json.loads(text.partition(b"\r\n\r\n")[2]))


def measure(concurrency: int) -> dict[str, float]:
    """One run at one concurrency: errors against the server's truth, CPU for 1000 tokens, lag."""
    with truth_server() as port, contextlib.redirect_stdout(io.StringIO()) as output:
        arguments = {"port": port, "model": "good", "levels": [concurrency], "n_requests": 2 * concurrency}
        loadgen.main({**arguments, "output_tokens": N_TOKENS, "warmup": 2, "deadline_s": 30})
        truth = truth_of(port)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    requests = [line for line in lines if line["type"] == "request" and not line["error"]]
    level = next(line for line in lines if line["type"] == "level")
    gaps = [gap for request in requests for gap in request["itl_ms"]]
    true_ttft, true_gaps = truth["ttft_ms"][2:], truth["itl_ms"][2 * 15 :]  # without the two warm-up requests
    n_tokens = sum(request["completion_tokens"] for request in requests)
    return {
        "n_requests": len(requests),
        "ttft_error_ms": statistics.mean(request["ttft_ms"] for request in requests) - statistics.mean(true_ttft),
        "itl_error_ms": abs(statistics.mean(gaps) - statistics.mean(true_gaps)),
        "cpu_ms_per_1000_tokens": 1e6 * level["client_cpu_share"] * level["duration_s"] / n_tokens,
        "loop_lag_p99_ms": level["loop_lag_p99_ms"],
    }


def judge(runs: dict[int, list[dict[str, float]]]) -> tuple[dict[str, Any], list[str]]:
    """Medians of the runs, and the sentences about what is past its bound."""
    medians, past = {}, []
    for concurrency, measured in runs.items():
        figures = {name: round(statistics.median(run[name] for run in measured), 3) for name in measured[0]}
        medians[str(concurrency)] = figures
        names = ("ttft_error_ms", "itl_error_ms", "cpu_ms_per_1000_tokens")
        for name, bound in zip(names, BOUNDS[concurrency], strict=True):
            if bound is not None and figures[name] > bound:
                past.append(f"concurrency {concurrency}: {name} is {figures[name]}, bound {bound}")
        if figures["n_requests"] != 2 * concurrency:
            past.append(f"concurrency {concurrency}: {figures['n_requests']} of {2 * concurrency} requests succeeded")
    return medians, past


def main() -> int:
    began = time.monotonic()
    runs: dict[int, list[dict[str, float]]] = {concurrency: [] for concurrency in BOUNDS}
    for _ in range(N_RUNS):
        for concurrency, measured in runs.items():
            measured.append(measure(concurrency))
    medians, past = judge(runs)
    result = {
        "benchmark": "loadgen_accuracy",
        "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "n": N_RUNS,
        "truth": {**TRUTH, "n_tokens": N_TOKENS},
        "medians": medians,
        "bounds": {str(key): value for key, value in BOUNDS.items()},
        "past_bound": past,
        "duration_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result, indent=1))
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
