"""The load generator: closed-loop levels against an OpenAI-compatible endpoint, measured on the host itself.

Arguments: port, levels, and optionally model (else the first that the server names), address, endpoint, n_requests
(one number, or one for each level), input_tokens, output_tokens, seed, warmup (requests), deadline_s (the whole run),
request_timeout_s, keep_text.
Prints JSON lines: `progress` every half second, after each level its `request` lines and one `level` line, and `end`.
Answers are only stamped while the clock runs; their JSON is read after the level, so that reading one does not
delay the stamps of another.
"""

import asyncio
import json
import time
from typing import Any, Dict, Optional

from opslib.onhost.completions import Completion, read_whole
from opslib.onhost.loadlevel import Answer, Level, Load, has_failed, read
from opslib.onhost.loadmeter import counted, read_counters

PROGRESS_S = 0.5
MAX_SPREAD_S = 1.0
CALIBRATION_WORDS = (16, 64)


def main(arguments: Dict[str, Any]) -> int:
    """Runs the levels one after the other; a failing server is a result, so the exit status is 0."""
    asyncio.run(_sweep(Load(arguments)))
    return 0


async def _sweep(load: Load) -> None:
    options = load.options
    load.model = options["model"] or await _served_model(load)
    await _calibrate(load)
    await _warm_up(load)
    for number, concurrency in enumerate(options["levels"]):
        if not load.time_left():
            break
        n_requests = options["n_requests"]
        count = n_requests[number] if isinstance(n_requests, list) else n_requests
        bodies = [load.body(load.n_words, options["output_tokens"]) for _ in range(count)]
        before = await _counters(load)
        level = Level(load, concurrency, bodies)
        await _with_progress(level)
        _print_level(level, counted(before, await _counters(load)))
    _print({"type": "end", "model": load.model, "is_cut_short": not load.time_left()})


async def _served_model(load: Load) -> str:
    exchange = await load.get("/v1/models")
    try:
        return str(json.loads(exchange.body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return ""


async def _with_progress(level: Level) -> None:
    running = asyncio.ensure_future(level.run())
    while not running.done():
        await asyncio.wait([running], timeout=PROGRESS_S)
        _print(level.progress())
    running.result()


async def _calibrate(load: Load) -> None:
    """Finds how many words make the wanted number of tokens, from what the server counts for two short prompts."""
    connection = load.connection()
    counts = []
    for n_words in CALIBRATION_WORDS:
        body = load.body(n_words, 1, stream=False)
        exchange = await connection.ask("POST", load.path, body, timeout_s=min(30.0, load.timeout_s()))
        usable = not has_failed(exchange)
        counts.append(read_whole(exchange.body).prompt_tokens if usable else None)
    connection.close()
    few, many = counts
    if few is None or many is None or many <= few:
        return
    per_word = (many - few) / (CALIBRATION_WORDS[1] - CALIBRATION_WORDS[0])
    overhead = few - CALIBRATION_WORDS[0] * per_word
    load.n_words = max(1, int((load.options["input_tokens"] - overhead) / per_word))


async def _warm_up(load: Load) -> None:
    """Unmeasured requests with prompts of their own; their time to first token is what the first bursts spread over."""
    count = int(load.options["warmup"])
    if count < 1:
        return
    n_tokens = min(16, load.options["output_tokens"])
    level = Level(load, min(count, 4), [load.body(load.n_words, n_tokens) for _ in range(count)])
    await level.run()
    firsts = [read(answer.exchange).first_at for answer in level.answers]
    waits = [at - answer.exchange.sent_at for at, answer in zip(firsts, level.answers) if at is not None]
    if waits:
        load.spread_s = min(MAX_SPREAD_S, sorted(waits)[len(waits) // 2])


async def _counters(load: Load) -> Dict[str, float]:
    exchange = await load.get("/metrics")
    return {} if has_failed(exchange) else read_counters(exchange.body.decode("utf-8", "replace"))


def _print_level(level: Level, server: Dict[str, Optional[float]]) -> None:
    messages: Dict[str, str] = {}
    for answer in sorted(level.answers, key=lambda answer: answer.number):
        completion = answer.completion or read(answer.exchange, keep_text=level.load.options["keep_text"])
        if completion.error is not None:
            messages.setdefault(*completion.error)
        _print(_request_line(level, answer, completion))
    ends = [answer.exchange.ended_at for answer in level.answers] or [time.perf_counter()]
    line = {
        "type": "level",
        "concurrency": level.concurrency,
        "n_requests": level.n_requests,
        "duration_s": round(max(ends) - level.started_at, 6),
        "error_messages": messages,
        "server": server,
    }
    _print({**line, **level.meter})


def _request_line(level: Level, answer: Answer, completion: Completion) -> Dict[str, Any]:
    sent_at, stamps = answer.exchange.sent_at, completion.stamps
    gaps = [after - before for before, after in zip(stamps, stamps[1:])]
    line = {
        "type": "request",
        "concurrency": level.concurrency,
        "index": answer.number,
        "sent_at_s": round(sent_at - level.started_at, 6),
        "ttft_ms": round(1000 * (stamps[0] - sent_at), 3) if stamps else None,
        "e2e_latency_ms": round(1000 * (stamps[-1] - sent_at), 3) if stamps else None,
        "itl_ms": [round(1000 * gap, 3) for gap in gaps],
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "error": completion.error[0] if completion.error else None,
    }
    if completion.text:
        line["text"] = completion.text
    return line


def _print(line: Dict[str, Any]) -> None:
    print(json.dumps(line, separators=(",", ":")), flush=True)
