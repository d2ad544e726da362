"""Runs an engine for systemd under Type=notify: tells its phase, when it really answers, and when it has failed.

As a script: notify_shim.py [--stall-s 300] [--longest-s 14400] [--health-path /health] -- /opt/vllm/bin/vllm serve ...
The engine's output goes on unchanged. READY=1 is sent after the first real answer of the engine itself; until then the
start timeout is extended as long as something moves: a new line, disks, processors, GPUs. SIGTERM is passed on. The
exit status is the engine's own; 70 where it ended with 0, or lost its engine core, though nobody had asked it to stop.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from opslib.onhost.processes import command_line, read_text, unit_of_cgroup
from opslib.onhost.shim_lines import Phases, Pump
from opslib.onhost.shim_movement import Movement
from opslib.onhost.unit_processes import Ending, processes_of
from opslib.onhost.watch_probe import ask_answer, ask_health, find_endpoint

FAILED = 70  # EX_SOFTWARE of sysexits(3)
CLEAN = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)  # no failures to systemd, systemd.service(5)
TICK_S = 0.25
LOOK_S = 2.0  # between two looks at what the processes use
CORE_GRACE_S = 30.0  # for an engine to end by itself when its engine cores have died
KILL_AFTER_S = 20.0
DRAIN_S = 2.0  # for the last lines of an engine that has ended
_CORE = "EngineCor"  # a process name has 15 signs


class Notifier:
    """The notification socket of systemd (sd_notify(3)); without one nothing is told."""

    def __init__(self, path: str) -> None:
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def tell(self, *assignments: str) -> None:
        """One message; a systemd that can't be reached is no reason to end a service."""
        try:
            if self._path:
                self._socket.sendto("\n".join(assignments).encode(), self._path)
        except OSError:
            pass


class Shim:
    """The engine, and what systemd is told of it."""

    def __init__(self, engine: List[str], table: Dict[str, Any], given: Any) -> None:
        self._given = given
        self._notifier = Notifier(os.environ.pop("NOTIFY_SOCKET", ""))  # the engine is not to talk to systemd
        self._watchdog_s = int(os.environ.pop("WATCHDOG_USEC", "0")) / 1e6
        os.environ.pop("WATCHDOG_PID", None)
        self._unit = unit_of_cgroup(read_text("/proc/self/cgroup")) or "-"
        self._phases = Phases(table)
        source, target = os.pipe()
        self._pump = Pump(source, 1, self._phases)
        self._engine = subprocess.Popen(engine, stdout=target, stderr=target)
        os.close(target)
        self._is_ready = threading.Event()
        self._problem = ""
        self._cores: Dict[int, Ending] = {}
        self._core_gone_at: Optional[float] = None
        self._has_lost_core = False
        self._told = ""
        self._is_asked_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Until the engine has ended; the exit status."""
        self._pump.start()
        self._movement = Movement(self._unit, self._given.nvidia_smi)
        began_at = looked_at = time.monotonic()
        threading.Thread(target=self._probe, daemon=True).start()
        is_told_ready = False
        while self._engine.poll() is None:
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                self._look_at_cores()
                if not is_told_ready:
                    self._extend(began_at)
            if self._is_ready.is_set() and not is_told_ready and not self._is_asked_to_stop:
                is_told_ready = True
                self._notifier.tell("READY=1", "STATUS=serving")
                self._told = "serving"
                self._pump.say("the engine has answered after %.0f s" % (time.monotonic() - began_at))
            elif not is_told_ready:
                self._tell_phase()
            time.sleep(TICK_S)
        return self._ended()

    def _on_signal(self, number: int, _frame: Any) -> None:
        if not self._is_asked_to_stop:
            self._is_asked_to_stop = True
            self._notifier.tell("STOPPING=1", "STATUS=stopping")
        if self._engine.poll() is None:
            self._engine.send_signal(number)

    def _tell_phase(self) -> None:
        still_s = int(time.monotonic() - self._movement.at)
        words = self._phases.words
        words += "; %s" % self._problem if self._problem else ""
        words += "; nothing moves since %d s" % (still_s - still_s % 5) if still_s >= 10 else ""
        if words != self._told and not self._is_asked_to_stop:
            self._told = words
            self._notifier.tell("STATUS=%s" % words)

    def _extend(self, began_at: float) -> None:
        """Give the start as long as it may stand still, counted from its last movement."""
        self._movement.look(self._phases.n_news)
        now = time.monotonic()
        left_s = min(self._movement.at + self._given.stall_s, began_at + self._given.longest_s) - now
        if left_s > 0 and self._movement.at == self._movement.looked_at:
            self._notifier.tell("EXTEND_TIMEOUT_USEC=%d" % (left_s * 1e6))

    def _probe(self) -> None:
        """Ask until the engine has answered, and then as often as a watchdog wants to hear of it."""
        while True:
            is_there = self._answers()
            if is_there and not self._is_ready.is_set():
                self._is_ready.set()
            if self._is_ready.is_set():
                if not self._watchdog_s:
                    return
                if is_there:
                    self._notifier.tell("WATCHDOG=1")
                time.sleep(min(10.0, self._watchdog_s / 4))
            else:
                time.sleep(0.5)

    def _answers(self) -> bool:
        endpoint = find_endpoint(os.getpid(), self._unit, port=0)
        code, _ = ask_health(endpoint, self._given.health_path) if endpoint.port else (None, 0.0)
        if code != 200:
            return False
        answer = ask_answer(endpoint)
        is_foreign = answer.get("is_ours") is False
        self._problem = "port %d is another process's" % endpoint.port if is_foreign else answer.get("problem", "")
        return not self._problem

    def _look_at_cores(self) -> None:
        """An API server that outlives all its engine cores serves nobody: it is ended, and that is a failure."""
        for pid in processes_of(os.getpid(), self._unit):
            if pid not in self._cores and _CORE in " ".join(command_line(pid)[:1]) + read_text("/proc/%d/comm" % pid):
                self._cores[pid] = Ending(pid)
        if self._is_asked_to_stop or not self._cores or not all(core.has_come() for core in self._cores.values()):
            self._core_gone_at = None
            return
        self._core_gone_at = self._core_gone_at or time.monotonic()
        gone_s = time.monotonic() - self._core_gone_at
        if gone_s > CORE_GRACE_S and not self._has_lost_core:
            self._has_lost_core = True
            self._pump.say("the engine core has died and the engine goes on without it: it is ended")
            self._engine.terminate()
        elif gone_s > CORE_GRACE_S + KILL_AFTER_S:
            self._engine.kill()

    def _ended(self) -> int:
        self._pump.join(DRAIN_S)
        status = self._engine.returncode
        said = "was killed by signal %d" % -status if status < 0 else "ended with status %d" % status
        is_failure = not self._is_asked_to_stop and (status <= 0 or self._has_lost_core)
        if is_failure:
            self._pump.say("the engine %s, and nobody had asked it to stop: a failure" % said)
        self._notifier.tell("STATUS=the engine %s" % said)
        self._pump.end()
        if status >= 0 or -status in CLEAN:
            return FAILED if is_failure else max(status, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the engine's own dump is the one that tells something
        os.kill(os.getpid(), -status)  # systemd sees the signal itself
        return 128 - status


def parse_arguments(argv: List[str]) -> Any:
    """The command line; `engine` is what stands behind `--`."""
    parser = argparse.ArgumentParser(description="Run an engine under Type=notify.")
    parser.add_argument("--stall-s", type=float, default=300, help="a start may stand still for so long")
    parser.add_argument("--longest-s", type=float, default=14400, help="no start is given more than this")
    parser.add_argument("--health-path", default="/health")
    parser.add_argument("--nvidia-smi", default="nvidia-smi")
    parser.add_argument("engine", nargs="+", help="the engine's command line, behind --")
    at = argv.index("--") if "--" in argv else len(argv)
    parsed = parser.parse_args([*argv[:at], "engine"] if argv[at + 1 :] else argv[:at])
    parsed.engine = argv[at + 1 :]
    return parsed


def main(arguments: Dict[str, Any]) -> int:
    """Run with {"argv": [...], "phases": the table of phases}."""
    given = parse_arguments(arguments["argv"])
    try:
        shim = Shim(given.engine, arguments["phases"], given)
    except OSError as error:
        sys.stderr.write("notify-shim: %s: %s\n" % (given.engine[0], error.strerror))
        return 127
    return shim.run()
