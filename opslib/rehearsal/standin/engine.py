"""A stand-in for `vllm serve`: a real program with vLLM's processes, log lines, memory needs, failures and HTTP."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional

from opslib.rehearsal.standin import engine_config
from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_checkpoint import read_checkpoint, read_config
from opslib.rehearsal.standin.engine_core import EngineCore
from opslib.rehearsal.standin.engine_flags import TOP_USAGE, parse_serve
from opslib.rehearsal.standin.engine_log import Log, name_process
from opslib.rehearsal.standin.engine_memory import kv_bytes_per_token, memory_sums, with_defaults
from opslib.rehearsal.standin.engine_plan import Plan
from opslib.rehearsal.standin.engine_serve import Serving
from opslib.rehearsal.standin.ledger import load_settings, open_ledger

LOGO = (
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version %s",
    "  █▄█▀ █     █     █     █  model   %s",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
)
INITIALIZATION_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


class Server:
    """The API server process: checks, the engine core's process, and HTTP once it is ready."""

    def __init__(self, settings: Dict[str, Any], given: Dict[str, Any]) -> None:
        self.settings = settings
        self.figures: Dict[str, Any] = settings["engine"]
        self.given = given
        self.log = Log("APIServer")
        self.core_pid = 0
        self.core_status: Optional[int] = None
        self.link: Optional[socket.socket] = None

    def run(self) -> int:
        """The exit status."""
        name_process("vllm")
        self.log_banner()
        listener = self.bind()
        plan = self.plan()
        signal.signal(signal.SIGTERM, self.stop_early)
        signal.signal(signal.SIGINT, self.stop_early)
        link = self.start_core(plan, listener)
        if not self.wait_until_ready(link):
            if self.end_core() == 0:
                return 0  # it was told to stop, and so is this process
            self.fail(tb.API_ENGINE, INITIALIZATION_FAILED)
        serving = Serving(plan, listener, link, self.log)
        return asyncio.new_event_loop().run_until_complete(serving.run(self.end_core))

    def log_banner(self) -> None:
        """Version, model, and the arguments that differ from the defaults."""
        time.sleep(float(self.figures["seconds"]["api_server"]) / float(self.settings["clock_factor"]))
        model = str(self.given["model"])
        texts = ["", LOGO[0], LOGO[1] % self.figures["version"], LOGO[2] % model, LOGO[3], ""]
        self.log.lines("banner", texts, "INFO")
        self.log.line("args", "non-default args: %r" % engine_config.shown(self.given))

    def bind(self) -> socket.socket:
        """Take the port, as vLLM does, before anything is loaded; a taken one ends the program with status 1."""
        host = str(self.given.get("host") or "")
        loopback = os.environ.get("OPSLIB_LOOPBACK")
        address = loopback if loopback and host in ("", "0.0.0.0", "::") else host  # noqa: S104
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, int(self.given.get("port") or 8000)))
        except OSError as error:
            self.fail(tb.API_BIND, "OSError: [Errno %d] %s" % (error.errno or 0, os.strerror(error.errno or 0)))
        return listener

    def plan(self) -> Plan:
        """Read config and checkpoint, and work out the memory; a bad configuration ends the program here."""
        model = str(self.given["model"])
        config = read_config(model)
        if config is None:
            self.fail(tb.API_MODEL, engine_config.missing_config(model))
        ledger = open_ledger(self.settings)
        total_gib = float(self.settings["gpus"]["total_gib"])
        flags = with_defaults(self.given, config, total_gib)
        gpus = engine_config.visible_gpus(ledger.count)
        self.log.line("architecture", "Resolved architecture: %s" % config["architectures"][0])
        reason = engine_config.refusal(flags, config, len(gpus))
        if reason:
            self.fail(tb.API_MODEL, reason)
        self.log_configuration(flags)
        per_token = kv_bytes_per_token(config, int(flags["tensor_parallel_size"]))
        return Plan(
            settings=self.settings,
            flags=flags,
            checkpoint=read_checkpoint(model, config),
            sums=memory_sums(self.figures, flags, int(config["vocab_size"]), total_gib, per_token),
            ledger=ledger,
            gpus=gpus,
        )

    def log_configuration(self, flags: Dict[str, Any]) -> None:
        """What is said once the configuration holds, with a routine warning of most starts under systemd."""
        self.log.line("max_len", "Using max model len %d" % flags["max_model_len"])
        limit = flags["max_num_batched_tokens"]
        self.log.line("chunked", "Chunked prefill is enabled with max_num_batched_tokens=%d." % limit)
        self.log.line("async", "Asynchronous scheduling is enabled.")
        self.log.line(
            "ulimit",
            "Found ulimit of 1024 and failed to automatically increase with error current limit exceeds maximum limit. "
            "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with "
            "ulimit -n",
            "WARNING",
        )

    def fail(self, frames: List[tb.Frame], exception: str) -> NoReturn:
        """An uncaught exception of the main process: its traceback, status 1."""
        for line in tb.traceback_lines(frames, exception):
            self.log.raw(line)
        os._exit(1)

    def start_core(self, plan: Plan, listener: socket.socket) -> socket.socket:
        """Fork the engine core; our end of the link to it."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            listener.close()
            EngineCore(plan, theirs).run()
        theirs.close()
        self.core_pid, self.link = pid, ours
        return ours

    def wait_until_ready(self, link: socket.socket) -> bool:
        """Whether the engine core said "ready" (False: it ended)."""
        while True:
            readable, _, _ = select.select([link], [], [], 1.0)
            if readable:
                return bool(link.recv(100))

    def stop_early(self, *_: Any) -> None:
        """SIGTERM before the engine is ready: end it, then this process."""
        self.end_core()
        os._exit(0)

    def end_core(self) -> int:
        """Close the link and wait for the engine core's end; its wait status."""
        if self.link is not None:
            self.link.close()
        if self.core_status is None:
            self.core_status = os.waitpid(self.core_pid, 0)[1] if self.core_pid else 0
        return self.core_status


def main() -> int:
    """`vllm serve …`, `vllm --version`; anything else is refused with vLLM's usage."""
    argv = sys.argv[1:]
    settings = load_settings()
    if argv in (["--version"], ["-v"]):
        print(settings["engine"]["version"])
        return 0
    if not argv or argv[0] != "serve":
        what = "argument subparser: invalid choice: %r" % argv[0] if argv else "no command"
        sys.stderr.write(TOP_USAGE + "vllm: error: %s\n" % what)
        return 2
    if settings["engine"].get("import_error"):
        for line in tb.traceback_lines(tb.IMPORT, str(settings["engine"]["import_error"])):
            sys.stderr.write(line + "\n")
        return 1
    given = parse_serve(argv[1:])
    model = given.pop("model_tag", None) or given.get("model") or "Qwen/Qwen3-0.6B"
    given.pop("model", None)
    status = Server(settings, {"model": model, **given}).run()
    os._exit(status)
