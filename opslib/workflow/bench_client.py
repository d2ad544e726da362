"""A second opinion: another benchmark client, from the unit's own environment on the host, in the same table."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.domain.benchmark_formats import level_of_guidellm, level_of_vllm
from opslib.domain.benchmark_judge import find_knee, judge_benchmark
from opslib.domain.host import Host
from opslib.domain.load import MIN_REQUESTS
from opslib.domain.states import State
from opslib.errors import BadParameter, UnexpectedAnswer

Client = Literal["vllm", "guidellm"]
_GRACE_S = 60.0  # these clients take up to half a minute to start


def run_client(
    host: Host,
    client: Client,
    *,
    port: int,
    model: str,
    root: str,
    levels: Sequence[int] = (1, 4, 16, 64),
    requests_per_stream: int = 2,
    input_tokens: int = 256,
    output_tokens: int = 128,
    deadline_s: float = 600.0,
    on_level: Callable[[BenchmarkLevel], None] = lambda _: None,
) -> BenchmarkReport:
    """What `vllm bench serve` (native where the wheel has it) or guidellm measures, as if we had measured it.

    `root` is the model's directory on the host. The report's `stop_reason` names the client. Raises BadParameter where
    the host has no such client, UnexpectedAnswer where it failed.
    """
    arguments = {
        "client": client,
        "vllm": host.settings.vllm,
        "levels": list(levels),
        "n_requests": [max(MIN_REQUESTS, requests_per_stream * level) for level in levels],
        "port": port,
        "model": model,
        "root": root,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "deadline_s": deadline_s,
    }
    found: list[BenchmarkLevel] = []
    program = ""
    with host.stream_program("bench_client", arguments) as stream:
        for raw in stream:
            line = json.loads(raw)
            if line["type"] == "client":
                program = " ".join(line["program"])
            elif line["type"] == "result":
                found.append(_level(client, line, host.settings.alias))
                on_level(found[-1])
            elif line["type"] == "failed":
                raise _failed(client, line, host.settings.alias)
            elif line["type"] == "end":
                return _report(found, len(levels), program, host.settings.alias, model)
    raise UnexpectedAnswer(f"{client} ended before its result", host=host.settings.alias)


def _level(client: Client, line: Mapping[str, Any], alias: str) -> BenchmarkLevel:
    try:
        if client == "vllm":
            return level_of_vllm(line["result"])
        return level_of_guidellm(line["result"], int(line["concurrency"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer(f"{client} wrote a result of another shape: {error!r}", host=alias) from error


def _failed(client: Client, line: Mapping[str, Any], alias: str) -> BadParameter | UnexpectedAnswer:
    if not line["concurrency"]:
        return BadParameter(line["why"], hint="install it on the host, or use the kit's own client")
    return UnexpectedAnswer(f"{client} failed at concurrency {line['concurrency']}: {line['why']}", host=alias)


def _report(levels: Sequence[BenchmarkLevel], n_planned: int, program: str, alias: str, model: str) -> BenchmarkReport:
    if not levels:
        return BenchmarkReport(state=State.UNKNOWN, summary="no level was measured", levels=(), checks=(), host=alias)
    report = judge_benchmark(levels, n_planned=n_planned, host=alias, model=model)
    summary = f"{report.summary} (measured by {program})"
    return report.model_copy(update={"summary": summary, "knee_concurrency": find_knee(report.levels)})
