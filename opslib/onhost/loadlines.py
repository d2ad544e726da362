"""What a level's answers become: one line for each request, one for the level."""

import time
from typing import Any, Dict, List, Optional, Tuple

from opslib.onhost.completions import Completion
from opslib.onhost.loadlevel import Answer, Level, read
from opslib.onhost.loadsteady import steady_part

Line = Dict[str, Any]
_BY_PATH = ("http_404", "http_405")  # what fails by where it was sent


def lines_of(level: Level) -> Tuple[List[Line], Line]:
    """The request lines in the order of sending, and the level's own; answers are read here, after the clock."""
    requests, messages = [], {}  # type: Tuple[List[Line], Dict[str, str]]
    for answer in sorted(level.answers, key=lambda answer: answer.number):
        completion = answer.completion or read(answer.exchange, keep_text=level.load.options["keep_text"])
        if completion.error is not None:
            kind, words = completion.error
            messages.setdefault(kind, words + _asked(level) if kind in _BY_PATH else words)
        requests.append(_request_line(level, answer, completion))
    ends = [answer.exchange.ended_at for answer in level.answers] or [time.perf_counter()]
    line = {
        "type": "level",
        "concurrency": level.concurrency or level.max_open,
        "n_requests": level.n_requests if level.n_requests is not None else level.n_sent,
        "duration_s": round(max(ends) - level.started_at, 6),
        "error_messages": messages,
        **level.meter,
    }
    return requests, line


def _asked(level: Level) -> str:
    return " (POST %s)" % level.load.path(level.load.options["endpoint"])


def merged(shares: List[Tuple[List[Line], Line]]) -> Tuple[List[Line], Line]:
    """The lines of several processes as those of one level; of CPU and lag the worst counts."""
    requests = [request for share, _ in shares for request in share]
    for number, request in enumerate(sorted(requests, key=lambda request: request["sent_at_s"])):
        request["index"] = number
    lines = [line for _, line in shares]
    return sorted(requests, key=lambda request: request["index"]), {
        "type": "level",
        "concurrency": sum(line["concurrency"] for line in lines),
        "n_requests": sum(line["n_requests"] for line in lines),
        "duration_s": max((line["duration_s"] for line in lines), default=0.0),
        "error_messages": {kind: text for line in reversed(lines) for kind, text in line["error_messages"].items()},
        "client_cpu_share": max((line["client_cpu_share"] for line in lines), default=0.0),
        "loop_lag_p99_ms": max((line["loop_lag_p99_ms"] for line in lines), default=0.0),
    }


def summary_of(requests: List[Line], line: Line) -> Line:
    """What a sweep decides by: tokens (chunks where none are counted) per second, errors, p50 and p99 of latencies."""
    good = [request for request in requests if request["error"] is None]
    counts = [request["completion_tokens"] for request in good]
    chunks = [len(request["itl_ms"]) + 1 for request in good]
    n_tokens = sum(chunks if None in counts else counts)
    tpot = [(r["e2e_latency_ms"] - r["ttft_ms"]) / (n - 1) for r, n in zip(good, chunks) if r["ttft_ms"] and n > 1]
    return {
        "concurrency": line["concurrency"],
        "client_cpu_share": line["client_cpu_share"],
        "error_share": 1 - len(good) / line["n_requests"] if line["n_requests"] else 0.0,
        "output_throughput": n_tokens / line["duration_s"] if line["duration_s"] else 0.0,
        "steady_output_throughput": None if line.get("request_rate") else _steady(good, line["concurrency"]),
        "ttft_ms": _spread([request["ttft_ms"] for request in good if request["ttft_ms"] is not None]),
        "tpot_ms": _spread(tpot),
        "e2e_latency_ms": _spread([r["e2e_latency_ms"] for r in good if r["e2e_latency_ms"] is not None]),
    }


def _steady(good: List[Line], concurrency: int) -> Optional[float]:
    """Tokens (chunks where none are counted) per second of the steady part; None where there was none."""
    part = steady_part(good, concurrency, lambda request, n_chunks: request["completion_tokens"] or n_chunks)
    return part[0] / part[1] if part and part[1] > 0 else None


def _request_line(level: Level, answer: Answer, completion: Completion) -> Line:
    sent_at, stamps = answer.exchange.sent_at, completion.stamps
    began_at = sent_at if answer.intended_at is None else answer.intended_at
    line = {
        "type": "request",
        "concurrency": level.concurrency,
        "index": answer.number,
        "sent_at_s": round(sent_at - level.started_at, 6),
        "ttft_ms": round(1000 * (stamps[0] - began_at), 3) if stamps else None,
        "e2e_latency_ms": round(1000 * (stamps[-1] - began_at), 3) if stamps else None,
        "itl_ms": [round(1000 * (after - before), 3) for before, after in zip(stamps, stamps[1:])],
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "error": completion.error[0] if completion.error else None,
    }
    if answer.intended_at is not None:
        line["intended_at_s"] = round(answer.intended_at - level.started_at, 6)
    if completion.text:
        line["text"] = completion.text
    return line


def _spread(values: List[float]) -> Dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}
