"""Asks a unit's engine, where its own command line says that it listens: `/health`, its models, one real answer."""

import http.client
import json
import os
import ssl
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from opslib.onhost.engine_argv import flag_value, read_engine_arguments
from opslib.onhost.processes import command_line
from opslib.onhost.unit_processes import environment_of, listens, processes_of

_HEALTH_TIMEOUT_S = 1.0
_ANSWER_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 3.0  # for an engine among the processes of a unit
_SERVES = ("serve", "api_server", "launch_server", "server")
_CONTAINERS = ("docker", "podman", "nerdctl")
# What is asked for one answer, in this order, until one of them is understood: path, body, where the answer lies.
_ASKED = (
    ("/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0}, "token"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}, "token"),
    ("/v1/embeddings", {"input": "1"}, "embedding"),
    ("/pooling", {"input": "1"}, "embedding"),
    ("/classify", {"input": "1"}, "class"),
    ("/v1/score", {"text_1": "1", "text_2": "1"}, "score"),
)
_NOT_ITS_KIND = (400, 404, 405, 422, 501)


class Endpoint(NamedTuple):
    """Where and how an engine is asked; `is_engine` where a command line of the unit said so."""

    address: str
    port: int
    has_tls: bool
    key: str
    is_engine: bool
    is_container: bool = False
    pids: Tuple[int, ...] = ()


def find_endpoint(main_pid: int, unit: str, *, port: int) -> Endpoint:
    """What the unit's effective command lines and environment say; `port` where they say nothing."""
    loopback = os.environ.get("OPSLIB_LOOPBACK", "127.0.0.1")
    pids = processes_of(main_pid, unit) if main_pid else []
    main = command_line(main_pid) if main_pid else []
    is_container = bool(main) and os.path.basename(main[0]) in _CONTAINERS
    for pid in pids:
        argv = command_line(pid)
        said = read_engine_arguments(argv)
        if said is None or not any(word in " ".join(argv) for word in _SERVES):
            continue
        key = flag_value(argv, ("--api-key",)) or environment_of(pid).get("VLLM_API_KEY", "")
        has_tls = bool(flag_value(argv, ("--ssl-certfile", "--ssl-keyfile")))
        return Endpoint(said.address or loopback, said.port, has_tls, key, True, is_container, tuple(pids))
    return Endpoint(loopback, port, False, "", False, is_container, tuple(pids))


def ask_health(endpoint: Endpoint, path: str) -> Tuple[Optional[int], float]:
    """The status code, None where nothing answers, and how long that took in milliseconds."""
    began = time.monotonic()
    code, _ = _ask(endpoint, "GET", path, None, _HEALTH_TIMEOUT_S)
    return code, (time.monotonic() - began) * 1000.0


def ask_answer(endpoint: Endpoint) -> Dict[str, Any]:
    """One real answer: {"kind", "model", "latency_ms", "is_ours"}, or "problem" in words.

    A kind of "none" says that no engine was recognised, so that there is nothing to ask for.
    """
    is_ours = None if endpoint.is_container else listens(list(endpoint.pids), endpoint.port)
    if not endpoint.is_engine:
        return {"kind": "none", "is_ours": is_ours}
    code, models = _ask(endpoint, "GET", "/v1/models", None, 10.0)
    if code != 200:
        return {"problem": "/v1/models answers %s" % (_told(code, models, endpoint))}
    names = [str(model.get("id")) for model in _list(models, "data")]
    if not names:
        return {"problem": "/v1/models lists no model"}
    return dict(_first_answer(endpoint, names[0]), is_ours=is_ours)


def _first_answer(endpoint: Endpoint, model: str) -> Dict[str, Any]:
    problem = ""
    for path, body, kind in _ASKED:
        began = time.monotonic()
        code, document = _ask(endpoint, "POST", path, dict(body, model=model), _ANSWER_TIMEOUT_S)
        if code == 200 and (_list(document, "choices") or _list(document, "data")):
            latency_ms = (time.monotonic() - began) * 1000.0
            return {"kind": kind, "model": model, "latency_ms": round(latency_ms, 1), "path": path}
        problem = problem or "%s answers %s" % (path, _told(code, document, endpoint))
        if code not in _NOT_ITS_KIND:
            break
    return {"problem": problem, "model": model}


def _told(code: Optional[int], document: Any, endpoint: Endpoint) -> str:
    if code is None:
        return "nothing in time"
    if code in (401, 403) and not endpoint.key:
        return "%d: it wants an API key, which this login may not read" % code
    error = document.get("error", document) if isinstance(document, dict) else document
    words = error.get("message", "") if isinstance(error, dict) else ""
    return "%d%s" % (code, ": " + str(words)[:200] if words else "")


def _ask(
    endpoint: Endpoint, method: str, path: str, body: Optional[Dict[str, Any]], timeout_s: float
) -> Tuple[Optional[int], Any]:
    if endpoint.has_tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # this machine's own loopback; the certificate names another address
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            endpoint.address, endpoint.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(endpoint.address, endpoint.port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", "User-Agent": "opslib"}
    if endpoint.key:
        headers["Authorization"] = "Bearer " + endpoint.key
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read(1000000)
    except (OSError, http.client.HTTPException):
        return None, None
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except (ValueError, RecursionError):
        return answer.status, None


def _list(document: Any, name: str) -> List[Any]:
    value = document.get(name) if isinstance(document, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class Prober:
    """Asks in threads of its own, so that a server that hangs holds up nothing else."""

    def __init__(self, tell: Any, stop: threading.Event, *, unit: str, port: int, path: str, pace_s: float) -> None:
        self._tell = tell
        self._stop = stop
        self._unit = unit
        self._port = port
        self._path = path
        self._pace_s = pace_s
        self._answered = threading.Event()
        self._main_pid = 0
        self._told: Dict[str, Any] = {}
        self.latency_ms: Optional[float] = None

    def start(self, *, wants_answer: bool) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, args=(wants_answer,), daemon=True).start()

    def look_at(self, main_pid: int) -> None:
        """From now on another process is asked: what an earlier one answered counts no more."""
        if main_pid != self._main_pid:
            self._main_pid = main_pid
            self._told = {}
            self._answered.clear()

    def _run(self, wants_answer: bool) -> None:
        known: Any = None
        told_for = -1
        found_for, look_again_at = -1, 0.0
        endpoint = find_endpoint(0, self._unit, port=self._port)
        asking: Optional[threading.Thread] = None
        while not self._stop.is_set():
            if found_for != self._main_pid or (not endpoint.is_engine and time.monotonic() > look_again_at):
                found_for, look_again_at = self._main_pid, time.monotonic() + _LOOK_AGAIN_S
                endpoint = find_endpoint(found_for, self._unit, port=self._port)
            code, latency_ms = ask_health(endpoint, self._path)
            self.latency_ms = round(latency_ms, 1) if code is not None else None
            if code != known or told_for != found_for:  # of another process it is told anew
                known, told_for = code, found_for
                fields = {"status_code": code, "latency_ms": self.latency_ms, "port": endpoint.port}
                self._tell("health", fields)
            is_idle = asking is None or not asking.is_alive()
            if code == 200 and wants_answer and is_idle and found_for and not self._answered.is_set():
                asking = threading.Thread(target=self._answer, args=(found_for,), daemon=True)
                asking.start()
            self._stop.wait(self._pace_s if code != 200 or not self._answered.is_set() else 2 * self._pace_s)

    def _answer(self, main_pid: int) -> None:
        endpoint = find_endpoint(main_pid, self._unit, port=self._port)  # now with all its processes
        answer = ask_answer(endpoint)
        if main_pid != self._main_pid:
            return
        if "problem" not in answer:
            self._answered.set()
        if answer != self._told:
            self._told = answer
            self._tell("answer", dict(answer, pid=main_pid))
        if "problem" in answer:
            self._stop.wait(1.0)
