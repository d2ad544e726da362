"""How many requests an engine works on, from its /metrics, asked again and again until none is left.

Prints one JSON line {"running": n, "waiting": n} each time that the numbers change, and {"end": why} at the end:
"idle" (two answers in a row with nothing to do), "deadline", "closed" (nobody listens), "unknown" (no such figures).
"""

import http.client
import json
import os
import re
import ssl
import time
from typing import Any, Dict, Optional, Tuple

TIMEOUT_S = 10.0
INTERVAL_S = 0.5
CALM = 2  # answers in a row: a request may come between two
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)


def read_in_flight(text: str) -> Optional[Tuple[int, int]]:
    r"""Requests that run and that wait, over all engines of the server; None where the text has no such figures.

    >>> read_in_flight('vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 1.0\n')
    (3, 1)
    """
    sums: Dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    return (int(sums["running"]), int(sums.get("waiting", 0))) if "running" in sums else None


def ask(address: str, port: int, *, is_tls: bool) -> str:
    """The text of /metrics; raises OSError and http.client.HTTPException."""
    if is_tls:
        context = ssl._create_unverified_context()  # noqa: SLF001, S323 - this very host, and no secret is sent
        connection = http.client.HTTPSConnection(address, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)  # type: ignore[assignment]
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode("utf-8", "replace")
    finally:
        connection.close()


def main(arguments: Dict[str, Any]) -> int:
    """Run with {"port": n, "address": "", "tls": false, "deadline_s": x}."""
    address = arguments.get("address") or os.environ.get("OPSLIB_LOOPBACK") or "127.0.0.1"
    end_at = time.monotonic() + float(arguments["deadline_s"])
    last, calm = None, 0
    while True:
        try:
            found = read_in_flight(ask(address, int(arguments["port"]), is_tls=bool(arguments.get("tls"))))
        except ConnectionRefusedError:
            return _end("closed")
        except (OSError, http.client.HTTPException) as error:
            found = last  # a busy server: ask again
            print(json.dumps({"problem": str(error) or type(error).__name__}), flush=True)
        else:
            if found is None:
                return _end("unknown")
        if found != last and found is not None:
            print(json.dumps({"running": found[0], "waiting": found[1]}), flush=True)
        last, calm = found, calm + 1 if found == (0, 0) else 0
        if calm >= CALM:
            return _end("idle")
        if time.monotonic() >= end_at:
            return _end("deadline")
        time.sleep(INTERVAL_S)


def _end(why: str) -> int:
    print(json.dumps({"end": why}), flush=True)
    return 0
