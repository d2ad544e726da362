"""Benchmarks a service from its own host: the load generator runs there, figures come back as it goes."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Timer
from typing import Any, NamedTuple

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.domain.benchmark_judge import judge_benchmark
from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.domain.host import Host
from opslib.domain.states import CheckResult, State
from opslib.errors import UnexpectedAnswer

Progress = Callable[["Mapping[str, Any] | BenchmarkLevel"], None]
_MIN_REQUESTS = 4
_GRACE_S = 30.0  # what the program may need beyond its deadline to start, read its answers and print them


def run_benchmark(
    host: Host,
    *,
    port: int,
    model: str = "",
    levels: Sequence[int] = (1, 4, 16, 64),
    requests_per_stream: int = 2,
    input_tokens: int = 256,
    output_tokens: int = 128,
    seed: int = 0,
    deadline_s: float = 600.0,
    endpoint: str = "/v1/completions",
    on_progress: Progress | None = None,
) -> BenchmarkReport:
    """Measures throughput and latencies at each concurrency level, and judges them.

    Without a `model` the first that the service names is used. Each of a level's streams sends
    `requests_per_stream` requests, a level at least four. `on_progress` gets each progress line (n_done, n_requests,
    n_errors, n_chunks, concurrency, elapsed_s) and each finished BenchmarkLevel. A service that fails is a report;
    UnexpectedAnswer means that the load generator itself ended before its result.
    """
    arguments = {
        "port": port,
        "model": model,
        "endpoint": endpoint,
        "levels": list(levels),
        "n_requests": [max(_MIN_REQUESTS, requests_per_stream * concurrency) for concurrency in levels],
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "seed": seed,
        "deadline_s": deadline_s,
    }
    sweep = _measure(host, arguments, deadline_s, on_progress or (lambda _: None))
    return judge_benchmark(sweep.levels, n_planned=len(levels), host=host.settings.alias, model=sweep.model)


class TokenCheck(CheckResult):
    """Whether a service generates, and the time to its first token (None where there was none)."""

    ttft_ms: float | None = None


def one_token(
    host: Host, port: int, model: str = "", *, deadline_s: float = 30.0, endpoint: str = "/v1/completions"
) -> TokenCheck:
    """Asks for one real completion of one token: a service can be healthy and still not generate."""
    arguments = {
        "port": port,
        "model": model,
        "endpoint": endpoint,
        "levels": [1],
        "n_requests": 1,
        "input_tokens": 16,
        "output_tokens": 1,
        "warmup": 0,
        "deadline_s": deadline_s,
        "keep_text": True,
    }
    sweep = _measure(host, arguments, deadline_s, lambda _: None)
    if not sweep.levels or not sweep.requests:
        summary = f"no token within {deadline_s:.0f} s"
        return TokenCheck(name="one_token", state=State.CRITICAL, summary=summary)
    level, request = sweep.levels[0], sweep.requests[0]
    if request["error"] is not None or not level.total_output_tokens:
        kind = str(request["error"] or "no_tokens")
        message = level.error_messages.get(kind, "")
        return TokenCheck(name="one_token", state=State.CRITICAL, summary=f"no completion: {kind}: {message}")
    ttft_ms = float(request["ttft_ms"] or 0)
    text = repr(request.get("text", ""))
    summary = f"one token after {ttft_ms:.0f} ms"
    return TokenCheck(name="one_token", state=State.OK, summary=summary, evidence=(text,), ttft_ms=ttft_ms)


class _Sweep(NamedTuple):
    levels: list[BenchmarkLevel]
    requests: list[dict[str, Any]]
    model: str


def _measure(host: Host, arguments: Mapping[str, object], deadline_s: float, on_progress: Progress) -> _Sweep:
    levels: list[BenchmarkLevel] = []
    requests: list[dict[str, Any]] = []
    n_read = 0  # requests that belong to finished levels
    with host.stream_program("loadgen", arguments) as stream:
        watchdog = Timer(deadline_s + _GRACE_S, stream.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            for raw in stream:
                line = _read_line(raw, host.settings.alias)
                if line["type"] == "end":
                    return _Sweep(levels, requests, line["model"])
                if line["type"] == "request":
                    requests.append(line)
                elif line["type"] == "level":
                    levels.append(summarize([LevelRun(line, requests[n_read:])]))
                    n_read = len(requests)
                    on_progress(levels[-1])
                else:
                    on_progress(line)
        finally:
            watchdog.cancel()
    message = f"the load generator ended before its result, after {len(levels)} levels"
    raise UnexpectedAnswer(message, host=host.settings.alias, hint="run it again; see the host's memory and load")


def _read_line(raw: bytes, alias: str) -> dict[str, Any]:
    with suppress(ValueError):
        line = json.loads(raw)
        if isinstance(line, dict) and "type" in line:
            return line
    raise UnexpectedAnswer(f"the load generator printed {raw[:80]!r}", host=alias)
