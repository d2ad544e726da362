"""Benchmarks a service: the load generator runs on its own host (or here, against a URL), figures come as it goes."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Timer
from typing import Any, NamedTuple

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport, Slo
from opslib.domain.benchmark_judge import judge_benchmark
from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.domain.host import Host
from opslib.domain.load import LoadSpec, closed_levels
from opslib.domain.states import CheckResult, State
from opslib.errors import BadParameter, HostUnreachable, UnexpectedAnswer

Progress = Callable[["Mapping[str, Any] | BenchmarkLevel"], None]
_HINTS = {
    "connect": "is it running, and is that its address?",
    "tls": "its own CA goes by --ca-file; is it https:// there, and is that the certificate's name?",
}
_GRACE_S = 30.0  # what the program may need beyond its deadline to start, read its answers and print them


def run_benchmark(
    host: Host,
    *,
    port: int = 0,
    url: str = "",
    ca_file: str = "",
    api_key: str = "",
    model: str = "",
    load: LoadSpec | None = None,
    levels: Sequence[int] = (1, 4, 16, 64),
    requests_per_stream: int = 2,
    input_tokens: int = 256,
    output_tokens: int = 128,
    seed: int = 0,
    deadline_s: float = 600.0,
    endpoint: str = "",
    slo: Slo | None = None,
    gpus: Sequence[int] = (),
    python: str = "",
    on_progress: Progress | None = None,
) -> BenchmarkReport:
    """Measures throughput and latencies at each level of a load, and judges them.

    The service listens on the host's `port`, or answers at `url` (https: with the CA of `ca_file`, both as the host
    sees them); `api_key` is `env:NAME` or `file:PATH`, looked up on the host. `load`, or else plain `levels` of
    streams. Without a `model` the first that the service names is used, without an `endpoint` /v1/completions, or
    /v1/chat/completions where only that is there. With `gpus` (their indices) nvidia-smi is
    watched, and throughput is told per GPU. `python` is a Python of the host with uvloop (see `engine_python`).
    `on_progress` gets each progress line (n_done, n_requests, n_errors, n_chunks, concurrency, elapsed_s) and each
    level as it ends, a repeated one each time. A service that fails is a report; BadParameter, and HostUnreachable
    where a `url` leads nowhere, mean that nothing was sent, UnexpectedAnswer that the load generator itself ended
    before its result.
    """
    spec = load or LoadSpec(
        levels=closed_levels(levels),
        requests_per_stream=requests_per_stream,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        seed=seed,
    )
    arguments = {
        **spec.arguments(),
        "port": port,
        "url": url,
        "ca_file": ca_file,
        "api_key": api_key,
        "model": model,
        "endpoint": endpoint,
        "deadline_s": deadline_s,
        "gpus": list(gpus),
        "watches_gpus": bool(gpus),
    }
    slo = slo or spec.slo
    sweep = _measure(host, arguments, on_progress or (lambda _: None), slo=slo, n_gpus=len(gpus), python=python)
    is_stopped = bool(sweep.end.get("stop_reason"))
    return judge_benchmark(
        sweep.levels(slo, len(gpus), spec.seed),
        n_planned=None if is_stopped else len(arguments["levels"]),
        host=host.settings.alias,
        model=str(sweep.end["model"]),
        stop_reason=str(sweep.end.get("stop_reason", "")),
        saturation_concurrency=sweep.end.get("saturation_concurrency"),
        slo=slo,
        n_repeats=spec.repeats,
        n_asked_tokens=_asked_tokens(spec),
        refused_fields=sweep.end.get("refused_fields", ()),
        is_chat_only=bool(sweep.end.get("is_chat_only")),
        has_shared_prefixes=bool(spec.prefix_tokens or (spec.prompts and not spec.has_salt)),
    )


def _asked_tokens(spec: LoadSpec) -> int | None:
    """How long every answer is to be; None where that differs."""
    is_one = not spec.prompts and all(level.output_tokens is None for level in spec.levels)
    return spec.output_tokens if is_one and isinstance(spec.output_tokens, int) else None


def engine_python(host: Host) -> str:
    """The Python that the engine's own program runs on, by its first line; "" where that names none with a path.

    A vLLM environment has uvloop, with which the load generator needs half the CPU.
    """
    first = (host.read_file(host.settings.vllm) or b"").partition(b"\n")[0].decode("utf-8", "replace")
    interpreter = first.removeprefix("#!").strip()
    is_python = first.startswith("#!/") and interpreter.rpartition("/")[2].startswith("python")
    return interpreter if is_python and " " not in interpreter else ""


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
    sweep = _measure(host, arguments, lambda _: None)
    levels, requests = sweep.levels(), [request for run in sweep.runs for request in run.requests]
    if not levels or not requests:
        summary = f"no token within {deadline_s:.0f} s"
        return TokenCheck(name="one_token", state=State.CRITICAL, summary=summary)
    level, request = levels[0], requests[0]
    if request["error"] is not None or not level.total_output_tokens:
        kind = str(request["error"] or "no_tokens")
        message = level.error_messages.get(kind, "")
        return TokenCheck(name="one_token", state=State.CRITICAL, summary=f"no completion: {kind}: {message}")
    ttft_ms = float(request["ttft_ms"] or 0)
    text = repr(request.get("text", ""))
    summary = f"one token after {ttft_ms:.0f} ms"
    return TokenCheck(name="one_token", state=State.OK, summary=summary, evidence=(text,), ttft_ms=ttft_ms)


class _Sweep(NamedTuple):
    runs: list[LevelRun]
    end: Mapping[str, Any]

    def levels(self, slo: Slo | None = None, n_gpus: int = 0, seed: int = 0) -> list[BenchmarkLevel]:
        """Each level with all of its runs."""
        numbers = sorted({run.level["number"] for run in self.runs})
        grouped = [[run for run in self.runs if run.level["number"] == number] for number in numbers]
        return [summarize(runs, slo=slo, n_gpus=n_gpus, seed=seed) for runs in grouped]


def _measure(
    host: Host,
    arguments: Mapping[str, Any],
    on_progress: Progress,
    *,
    slo: Slo | None = None,
    n_gpus: int = 0,
    python: str = "",
) -> _Sweep:
    runs: list[LevelRun] = []
    requests: list[dict[str, Any]] = []
    with host.stream_program("loadgen", arguments, python=python) as stream:
        watchdog = Timer(float(arguments["deadline_s"]) + _GRACE_S, stream.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            for raw in stream:
                line = _read_line(raw, host.settings.alias)
                if line["type"] == "end":
                    return _Sweep(runs, line)
                if line["type"] == "refused":
                    raise BadParameter(str(line["message"]), host=host.settings.alias)
                if line["type"] == "unreachable":
                    where, hint = arguments["url"], _HINTS[line["kind"]]
                    raise HostUnreachable(f"no connection to {where}: {line['message']}", hint=hint)
                if line["type"] == "request":
                    requests.append(line)
                elif line["type"] == "level":
                    runs.append(LevelRun(line, requests))
                    requests = []
                    on_progress(summarize(runs[-1:], slo=slo, n_gpus=n_gpus))
                else:
                    on_progress(line)
        finally:
            watchdog.cancel()
    message = f"the load generator ended before its result, after {len(runs)} levels"
    raise UnexpectedAnswer(message, host=host.settings.alias, hint="run it again; see the host's memory and load")


def _read_line(raw: bytes, alias: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        line = json.loads(raw)
        if isinstance(line, dict) and "type" in line:
            return line
    raise UnexpectedAnswer(f"the load generator printed {raw[:80]!r}", host=alias)
