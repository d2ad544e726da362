"""Looks over a host once and prints one JSON document: engine units, GPUs, disks, memory, journal, clock.

Gathers only: what it means is judged elsewhere. Arguments: {"units": names, or none to look for engines,
"unit_dir", "models_dir", "vllm", "commands": argument vectors by name (read-only ones), "timeout_s": of each command,
"timeouts_s": of those that may take longer}.
Every question has a time of its own, so that one that hangs is an answer as well.
"""

import http.client
import json
import os
import re
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from opslib.onhost.engine_argv import EngineArguments, engine_of, read_engine_arguments
from opslib.onhost.identity import identity
from opslib.onhost.installed import installed_version
from opslib.onhost.processes import command_line, describe, read_text, uptime_s

_HEALTH_TIMEOUT_S = 2.0
_MAX_KERNEL_LINES = 60
_MAX_PROCESSES = 400
_NOT_ALONE = ("list_units", "show", "owners", "settings")  # commands that are asked when there is something to ask
_HANGS = "does not answer (a network file system that hangs?)"
_KERNEL_WORDS = re.compile(rb"NVRM|Xid|\bECC\b|EDAC|Machine [Cc]heck|[Hh]ardware [Ee]rror|amdgpu|Out of memory|oom[-_]")


def main(arguments: Dict[str, Any]) -> int:
    """Print everything that is asked; always exit status 0."""
    print(json.dumps(look(arguments)), flush=True)
    return 0


def look(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Everything that is asked, as one JSON object."""
    began_at = time.time()
    commands, timeout_s = arguments["commands"], arguments["timeout_s"]
    slow = arguments["timeouts_s"]
    alone = {name: argv for name, argv in commands.items() if name not in _NOT_ALONE}
    jobs = {name: _job(argv, slow.get(name, timeout_s)) for name, argv in alone.items()}
    jobs["units"] = lambda: _units(arguments)
    found = Background(_file_jobs(arguments))  # a network file system may hang for good: nothing waits on it before
    answers = Background(jobs).answers(max([3 * timeout_s, *(2.0 + seconds for seconds in slow.values())]))
    files = found.answers(timeout_s)
    units = answers.pop("units", {"units": [], "problem": "took too long"})
    kernel = answers.pop("kernel", None)
    reading = {
        "began_at": began_at,
        "identity": identity(),
        "uptime_s": uptime_s(),
        "container": read_text("/run/systemd/container").strip(),
        "units": units["units"],
        "units_problem": units["problem"],
        "answers": answers,
        "kernel": _kernel_lines(kernel) if kernel else None,
        "processes": _processes(answers, units["units"]),
        "filesystems": {
            name: files.get(name, {"path": path, "problem": _HANGS}) for name, path in arguments["filesystems"].items()
        },
        "memory": _memory(),
        "journal": {name: bool(_listed("/%s/log/journal" % name)) for name in ("var", "run")},
        "engine": files.get("engine", {"problem": "%s: %s" % (arguments["vllm"], _HANGS)}),
    }
    reading["ended_at"] = time.time()
    return reading


class Background:
    """Jobs that run at once; one that hangs for good is left behind without an answer."""

    def __init__(self, jobs: Dict[str, Callable[[], Any]]) -> None:
        self._answers = {}  # type: Dict[str, Any]
        self._began_at = time.monotonic()
        self._threads = [threading.Thread(target=self._work, args=item, daemon=True) for item in jobs.items()]
        for thread in self._threads:
            thread.start()

    def _work(self, name: str, job: Callable[[], Any]) -> None:
        self._answers[name] = job()

    def answers(self, patience_s: float) -> Dict[str, Any]:
        """What the jobs gave by `patience_s` after their start."""
        for thread in self._threads:
            thread.join(max(0.0, self._began_at + patience_s - time.monotonic()))
        return dict(self._answers)


def _file_jobs(arguments: Dict[str, Any]) -> Dict[str, Callable[[], Any]]:
    jobs = {name: _filesystem_job(path) for name, path in arguments["filesystems"].items()}
    jobs["engine"] = lambda: installed_version([arguments["vllm"]], "vllm")
    return jobs


def _filesystem_job(path: str) -> Callable[[], Dict[str, Any]]:
    return lambda: filesystem_at(path)


def _job(argv: List[str], timeout_s: float) -> Callable[[], Dict[str, Any]]:
    return lambda: ask(argv, timeout_s)


def ask(argv: List[str], timeout_s: float) -> Dict[str, Any]:
    """A command's answer; one that takes too long is killed and not waited for: the kernel may hold it."""
    began_at = time.monotonic()
    environment = dict(os.environ, LC_ALL="C", TZ="UTC")
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        return {"text": "", "exit_status": None, "problem": "missing", "error": str(error)}
    try:
        text, error_text = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return {"text": "", "exit_status": None, "problem": "timeout", "error": "no answer within %g s" % timeout_s}
    return {
        "text": text.decode("utf-8", "replace"),
        "exit_status": child.returncode,
        "problem": "",
        "duration_s": time.monotonic() - began_at,
        "error": error_text.decode("utf-8", "replace").strip()[:2000],
    }


def _units(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The units asked for, or all services whose command line mentions an engine."""
    blocks, problem = unit_blocks(arguments)
    told = Background({str(at): _unit_job(block) for at, block in enumerate(blocks)}).answers(2 * _HEALTH_TIMEOUT_S)
    return {"units": [told.get(str(at)) or _plain(block) for at, block in enumerate(blocks)], "problem": problem}


def unit_blocks(arguments: Dict[str, Any]) -> Tuple[List[str], str]:
    """What systemctl shows of each of these units, or why it shows nothing."""
    names, timeout_s = list(arguments["units"]), arguments["timeout_s"]
    if not names:
        listed = ask(arguments["commands"]["list_units"], timeout_s)
        if listed["exit_status"] != 0:
            return [], "systemctl: " + listed["error"]
        found = [line.split()[0] for line in listed["text"].splitlines() if line.strip()]
        names = sorted({name for name in found if name.endswith(".service")} | set(_unit_files(arguments["unit_dir"])))
    if not names:
        return [], ""
    shown = ask([*arguments["commands"]["show"], "--", *names], timeout_s)
    if shown["exit_status"] != 0:
        return [], "systemctl: " + shown["error"]
    return [block for block in shown["text"].split("\n\n") if arguments["units"] or engine_of(_exec_start(block))], ""


def _exec_start(block: str) -> str:
    return "\n".join(line for line in block.splitlines() if line.startswith("ExecStart="))


def _unit_files(unit_dir: str) -> List[str]:
    """Unit files that mention an engine: systemd lists a unit that was never started nowhere else."""
    names = [name for name in _listed(unit_dir) if name.endswith(".service") and "@." not in name]
    return [name for name in names if engine_of(read_text(os.path.join(unit_dir, name), 65536))]


def _listed(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _unit_job(block: str) -> Callable[[], Dict[str, Any]]:
    return lambda: _unit(block)


def _plain(block: str) -> Dict[str, Any]:
    """A unit's properties but for the command line, which may hold a secret."""
    properties = properties_of(block)
    shown = "\n".join(line for line in block.splitlines() if not line.startswith("ExecStart="))
    return {"show": shown, "id": properties.get("Id", ""), "main_pid": int(properties.get("MainPID") or 0)}


def properties_of(block: str) -> Dict[str, str]:
    """One unit's block of `systemctl show` by property."""
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _unit(block: str) -> Dict[str, Any]:
    """One unit: its properties, and what its engine says."""
    reading, properties = _plain(block), properties_of(block)
    argv, engine = _engine(properties.get("ExecStart", ""), reading["main_pid"])
    if engine is None:
        return reading
    is_up = properties.get("ActiveState") in ("active", "reloading")
    return dict(
        reading,
        engine=engine.kind.name,
        model=engine.model,
        port=engine.port,
        health=_health(engine.address, engine.port) if is_up else None,
        version=installed_version(argv[:2], engine.kind.package) if engine.kind.package else None,
    )


def _engine(exec_start: str, main_pid: int) -> Tuple[List[str], Optional[EngineArguments]]:
    """The engine's arguments: those of the running process, else (or where it renamed itself) those of the unit."""
    running = command_line(main_pid) if main_pid else []
    match = re.search(r"argv\[\]=(.*?) ; ignore_errors=", exec_start, re.DOTALL)
    for argv in (running, match.group(1).split() if match else []):
        engine = read_engine_arguments(argv)
        if len(argv) > 1 and engine is not None:
            return argv, engine
    return [], None


def _health(address: str, port: int) -> Dict[str, Any]:
    """What `/health` answers: a status code, or why there is none."""
    loopback = os.environ.get("OPSLIB_LOOPBACK", "127.0.0.1")
    where = loopback if address in ("", "127.0.0.1") else address
    connection = http.client.HTTPConnection(where, port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return {"status_code": connection.getresponse().status, "problem": ""}
    except ConnectionRefusedError:
        return {"status_code": None, "problem": "closed"}
    except (OSError, http.client.HTTPException) as error:
        is_late = "timed out" in str(error)
        return {"status_code": None, "problem": "silent" if is_late else str(error) or type(error).__name__}
    finally:
        connection.close()


def _kernel_lines(answer: Dict[str, Any]) -> Dict[str, Any]:
    """How many kernel lines there are, and the newest of those that tell of GPUs, memory errors, killed processes."""
    lines = [line for line in answer["text"].encode("utf-8").splitlines() if line.startswith(b"{")]
    told = [line.decode("utf-8", "replace") for line in lines if _KERNEL_WORDS.search(line)]
    problem = answer["problem"] and answer["error"]
    return {"n_lines": len(lines), "lines": told[-_MAX_KERNEL_LINES:], "problem": problem or answer["error"][:300]}


def _processes(answers: Dict[str, Any], units: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Who holds GPU memory, and who listens on TCP ports."""
    main_pids = {unit["main_pid"]: unit["id"] for unit in units if unit["main_pid"]}
    holders = answers.get("gpu_processes", {}).get("text", "")
    listeners = answers.get("listeners", {}).get("text", "")
    pids = set(re.findall(r"^[^,]*,\s*(\d+)", holders, re.MULTILINE))
    pids |= set(re.findall(r"pid=(\d+)", listeners)) if main_pids else set()
    return [describe(int(pid), main_pids) for pid in sorted(pids, key=int)[:_MAX_PROCESSES]]


def filesystem_at(path: str) -> Dict[str, Any]:
    """How large the file system of a path is, and how much an ordinary login can still fill."""
    try:
        status = os.statvfs(path)
    except OSError as error:
        return {"path": path, "problem": error.strerror or str(error)}
    return {
        "path": path,
        "total_bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
        "problem": "",
    }


def _memory() -> Dict[str, int]:
    figures = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE))
    names = {"total_bytes": "MemTotal", "available_bytes": "MemAvailable"}
    return {name: int(figures.get(figure, 0)) * 1024 for name, figure in names.items()}
