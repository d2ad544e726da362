"""The load generator: levels of load against an OpenAI-compatible endpoint, measured where it runs.

Arguments (defaults in loadlevel.DEFAULTS): port (with address), or url with ca_file; api_key (`env:NAME` or
`file:PATH`); model (else the first that the server names); endpoint; levels; n_requests (one number, or one for each
level); repeats; sweep ({max_concurrency, max_error_share, min_gain, ttft_ms, tpot_ms, e2e_latency_ms} ends rising
levels at saturation); warmup (requests before each level; None: as many as are open at once); input_tokens,
output_tokens, prompts, prefix_tokens (see loadinput); deadline_s (the whole run), request_timeout_s, read_timeout_s,
cooldown_s, keep_text, min_processes, max_processes, event_loop, watches_gpus, gpus.

A level is a number of streams, or {concurrency, n_requests or duration_s, ramp_s} (closed loop), or {arrival, rate,
...} (open loop, see loadshape.arrivals); input_tokens and output_tokens may be its own.
Prints JSON lines: `progress` every half second, after each level its `request` lines and one `level` line, and `end`.
Answers are only stamped while the clock runs; they are read after the level, so that reading one does not delay
another.
"""

import contextlib
import json
import time
from typing import Any, Dict, List, Optional

from opslib.onhost.exchange import Exchange, Failure
from opslib.onhost.loadgpu import GpuWatch
from opslib.onhost.loadlearn import CHAT, learn
from opslib.onhost.loadlevel import Level, Load, has_failed, read
from opslib.onhost.loadlines import summary_of
from opslib.onhost.loadrun import Lines, print_line, run_on_loop, watched, work_of
from opslib.onhost.loadshape import MAX_CPU_SHARE, arrivals, doubling, rotated, stop_reason
from opslib.onhost.loadsplit import Child, limit_of, processes_needed, split
from opslib.onhost.loadtarget import Refused

MAX_SPREAD_S = 1.0
WARMUP_TOKENS = 16
MAX_WARMUP = 256
START_S = 0.5  # what several processes need to open their connections
FIND_OUT_S = 30.0  # the most that one question before the load may take, and no more than a tenth of the run


def main(arguments: Dict[str, Any]) -> int:
    """Runs the levels one after the other; a failing server is a result, so the exit status is 0.

    A URL that leads to none is not: one line says so (`unreachable`, with the reason), and nothing was sent.
    """
    try:
        load = Load(arguments)
    except Refused as error:
        print_line({"type": "refused", "message": str(error)})
        return 0
    failure = run_on_loop(load, _failure_to_reach(load)) if load.options["url"] else None
    if failure is not None:
        print_line({"type": "unreachable", "kind": failure[0], "message": failure[1]})
        return 0
    run_on_loop(load, _prepare(load))
    gpus = GpuWatch(load.options["gpus"]) if load.options["watches_gpus"] else None
    if gpus is not None:
        gpus.start()
    try:
        print_line(Sweep(load, gpus).run())
    finally:
        if gpus is not None:
            gpus.stop()
    return 0


class Sweep:
    """The levels of a run in their order, and how many processes they need."""

    def __init__(self, load: Load, gpus: Optional[GpuWatch]) -> None:
        self.load = load
        self.gpus = gpus
        self.limit = limit_of(load.options["max_processes"])
        self.n_processes, self.cpu_share, self.size = int(load.options["min_processes"]), 0.0, 0.0

    def run(self) -> Dict[str, Any]:
        """All levels, in rising order until a sweep has seen enough, then the repeats; gives the `end` line."""
        options, bounds = self.load.options, self.load.options["sweep"]
        shapes = self._shapes()
        summaries: List[Dict[str, Any]] = []
        reason = None
        for shape in shapes:
            if not self.load.time_left() or reason is not None:
                break
            summaries.append(self._measure(shape, 0))
            reason = stop_reason(summaries, bounds) if bounds is not None else None
        is_client_bound = bool(summaries) and summaries[-1]["client_cpu_share"] > MAX_CPU_SHARE
        for repeat in range(1, int(options["repeats"])):
            for shape in rotated(shapes[: len(summaries)], repeat):
                if self.load.time_left():
                    self._measure(shape, repeat)
        is_found = reason is not None and len(summaries) > 1 and not is_client_bound
        return {
            "type": "end",
            "model": self.load.inputs.model,
            "is_cut_short": not self.load.time_left(),
            "n_levels": len(shapes),
            "stop_reason": reason or "",
            "saturation_concurrency": summaries[-2]["concurrency"] if is_found else None,
            "lengths_by": self.load.inputs.exactness,
            "refused_fields": self.load.inputs.dropped,
            "is_chat_only": self.load.may_chat and self.load.options["endpoint"] == CHAT,
        }

    def _shapes(self) -> List[Dict[str, Any]]:
        options = self.load.options
        levels = options["levels"] or doubling(int((options["sweep"] or {}).get("max_concurrency", 1)))
        counts = options["n_requests"]
        counts = counts if isinstance(counts, list) else [counts] * len(levels)
        shapes: List[Dict[str, Any]] = []
        for level, count in zip(levels, counts):
            shape = dict(level) if isinstance(level, dict) else {"concurrency": level}
            if shape.get("n_requests") is None and shape.get("duration_s") is None and shape.get("arrival") != "trace":
                shape["n_requests"] = count
            shapes.append({**shape, "number": len(shapes)})
        return shapes

    def _measure(self, shape: Dict[str, Any], repeat: int) -> Dict[str, Any]:
        """One level, again with more processes where those were short of CPU and more may be had."""
        if shape.get("arrival"):
            shape = {**shape, "due": arrivals(shape, self.load.inputs.rng)}
        run_on_loop(self.load, _warm_up(self.load, shape))
        size = float(shape.get("concurrency") or shape.get("rate") or 1)
        if self.size:
            self.n_processes = processes_needed(self.n_processes, self.cpu_share, size / self.size, self.limit)
        while True:
            requests, line = self._run_level(shape, self.n_processes)
            more = processes_needed(self.n_processes, line["client_cpu_share"], 1.0, self.limit)
            if line["client_cpu_share"] <= MAX_CPU_SHARE or more <= self.n_processes or not self.load.time_left():
                break
            self.n_processes = more
        self.cpu_share, self.size = line["client_cpu_share"], size
        line.update({"number": shape["number"], "repeat": repeat})
        for request in requests:
            print_line(request)
        print_line(line)
        return summary_of(requests, line)

    def _run_level(self, shape: Dict[str, Any], n_processes: int) -> Lines:
        start_at = time.perf_counter() + START_S
        shares = split(shape, n_processes) if n_processes > 1 else []
        children = [Child(work_of(self.load, share, start_at)) for share in shares]
        (requests, line), at, details = run_on_loop(self.load, watched(self.load, shape, children, start_at))
        if self.gpus is not None:
            details["gpu_samples"] = self.gpus.samples(at, at + line["duration_s"])
        if shape.get("due") is not None:
            n_gaps, span_s = len(shape["due"]) - 1, shape["due"][-1] if shape["due"] else 0.0
            rate = shape.get("rate") or (n_gaps / span_s if span_s else 1.0)
            details.update({"request_rate": rate, "arrival": shape["arrival"]})
        wanted = len(shape["due"]) if shape.get("due") is not None else shape.get("n_requests") or 0
        line["n_requests"] = max(line["n_requests"], wanted)  # what a process that died never sent
        own = {"input_tokens": shape["input_tokens"]} if isinstance(shape.get("input_tokens"), int) else {}
        return requests, {**line, **details, **own, "n_processes": n_processes}


async def _failure_to_reach(load: Load) -> Failure:
    """Why no request would reach the URL's server, None where one does: an address may be mistyped, a unit's not."""
    connection = load.connection()
    failure = await connection.reach()
    connection.close()
    return failure


async def _prepare(load: Load) -> None:
    """The model's name, what the server understands, and how long prompts are in its tokens."""
    if not load.inputs.model:
        text = await load.get("/v1/models")
        with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
            load.inputs.model = str(json.loads(text or b"")["data"][0]["id"])

    def timeout_s() -> float:
        return max(0.05, min(FIND_OUT_S, 0.1 * float(load.options["deadline_s"]), load.timeout_s()))

    if load.options["warmup"] != 0:
        await learn(load, timeout_s)
    connection = load.connection()

    async def ask(endpoint: str, body: bytes) -> Optional[Exchange]:
        bound = min(5.0, timeout_s()) if endpoint == "/tokenize" else timeout_s()  # which computes nothing
        exchange = await connection.ask("POST", load.path(endpoint), body, timeout_s=bound)
        return None if has_failed(exchange) else exchange

    await load.inputs.find_lengths(ask)
    connection.close()


async def _warm_up(load: Load, shape: Dict[str, Any]) -> None:
    """Unmeasured requests with prompts of their own; their time to first token is what the first bursts spread over."""
    asked = load.options["warmup"]
    at_once = int(shape.get("concurrency") or min(32, -(-float(shape.get("rate") or 1) // 1)))
    count = min(MAX_WARMUP, at_once) if asked is None else int(asked)
    if count < 1:
        return
    warm = {**shape, "due": None, "duration_s": None, "ramp_s": None}
    warm.update({"concurrency": min(count, at_once), "n_requests": count})
    level = Level(load, warm, n_tokens=WARMUP_TOKENS)
    await level.run()
    completions = [(answer.exchange, read(answer.exchange)) for answer in level.answers]
    waits = [read_.first_at - exchange.sent_at for exchange, read_ in completions if read_.first_at is not None]
    if waits:
        load.spread_s = min(MAX_SPREAD_S, sorted(waits)[len(waits) // 2])
