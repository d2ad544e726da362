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

from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_api import ROUTES, Api
from opslib.rehearsal.standin.engine_checkpoint import read_checkpoint, read_config
from opslib.rehearsal.standin.engine_core import EngineCore
from opslib.rehearsal.standin.engine_flags import TOP_USAGE, parse_serve
from opslib.rehearsal.standin.engine_http import Connection
from opslib.rehearsal.standin.engine_load import Load
from opslib.rehearsal.standin.engine_log import Log, name_process
from opslib.rehearsal.standin.engine_memory import kv_bytes_per_token, kv_tokens, memory_sums, with_defaults
from opslib.rehearsal.standin.engine_plan import Plan
from opslib.rehearsal.standin.ledger import load_settings, open_ledger

LOGO = (
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version %s",
    "  █▄█▀ █     █     █     █  model   %s",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
)
LOADING_STATS_S = 10.0
CONFIG_ERROR = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, %s"
TOO_LONG = (
    "User-specified max_model_len (%d) is greater than the derived max_model_len (max_position_embeddings=%d or "
    "model_max_length=None in model's config.json). To allow overriding this maximum, set the env var "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
)
NO_CONFIG = (
    "Invalid repository ID or local directory specified: '%s'.\nPlease verify the following requirements:\n"
    "1. Provide a valid Hugging Face repository ID.\n"
    "2. Specify a local directory that contains a recognized configuration file.\n"
    "   - For Hugging Face models: ensure the presence of a 'config.json'."
)


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
        self.start_core(plan, listener)
        if not self.wait_until_ready():
            if self.end_core() == 0:
                return 0  # it was told to stop, and so is this process
            message = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
            self.fail(tb.API_ENGINE, "RuntimeError: " + message)
        return asyncio.new_event_loop().run_until_complete(self.serve(plan, listener))

    def log_banner(self) -> None:
        """Version, model, and the arguments that differ from the defaults."""
        time.sleep(float(self.figures["seconds"]["api_server"]) / float(self.settings["clock_factor"]) / 2)
        model = str(self.given["model"])
        texts = ["", LOGO[0], LOGO[1] % self.figures["version"], LOGO[2] % model, LOGO[3], ""]
        self.log.lines("banner", texts, "INFO")
        shown = {"model_tag": self.given["model"], **self.given}
        self.log.line("args", "non-default args: %r" % shown)

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
        """Read config and checkpoint, and work out the memory; a bad config ends the program here."""
        log, model = self.log, str(self.given["model"])
        self.settings["clock_factor"] = float(self.settings["clock_factor"])
        config = read_config(model)
        if config is None:
            self.fail(tb.API_MODEL, CONFIG_ERROR % (NO_CONFIG % model))
        ledger = open_ledger(self.settings)
        total_gib = float(self.settings["gpus"]["total_gib"])
        flags = with_defaults(self.given, config, total_gib)
        limit = int(config.get("max_position_embeddings") or flags["max_model_len"])
        self.warn_about_files()
        log.line("architecture", "Resolved architecture: %s" % config["architectures"][0])
        if flags["max_model_len"] > limit:
            self.fail(tb.API_MODEL, CONFIG_ERROR % (TOO_LONG % (flags["max_model_len"], limit)))
        world = int(flags["tensor_parallel_size"])
        if int(config["num_attention_heads"]) % world:
            message = "Total number of attention heads (%d) must be divisible by tensor parallel size (%d)."
            self.fail(tb.API_MODEL, CONFIG_ERROR % (message % (config["num_attention_heads"], world)))
        gpus = visible_gpus(ledger.count)
        if world > len(gpus):
            message = "World size (%d) is larger than the number of available GPUs (%d) in this node. If this is "
            message += "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'."
            self.fail(tb.API_MODEL, CONFIG_ERROR % (message % (world, len(gpus))))
        log.line("max_len", "Using max model len %d" % flags["max_model_len"])
        batched = flags["max_num_batched_tokens"]
        log.line("chunked", "Chunked prefill is enabled with max_num_batched_tokens=%d." % batched)
        log.line("async", "Asynchronous scheduling is enabled.")
        per_token = kv_bytes_per_token(config, world)
        sums = memory_sums(self.figures, flags, int(config["vocab_size"]), total_gib, per_token)
        return Plan(
            settings=self.settings,
            flags=flags,
            checkpoint=read_checkpoint(model, config),
            sums=sums,
            ledger=ledger,
            gpus=gpus,
        )

    def warn_about_files(self) -> None:
        """A routine warning of nearly every start under systemd."""
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

    def start_core(self, plan: Plan, listener: socket.socket) -> None:
        """Fork the engine core."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            listener.close()
            EngineCore(plan, theirs).run()
        theirs.close()
        self.core_pid, self.link = pid, ours

    def wait_until_ready(self) -> bool:
        """Whether the engine core said "ready" (False: it ended)."""
        assert self.link is not None
        while True:
            readable, _, _ = select.select([self.link], [], [], 1.0)
            if readable:
                return bool(self.link.recv(100))

    def stop_early(self, *_: Any) -> None:
        """SIGTERM before the engine is ready: end it, then this process."""
        self.end_core()
        os._exit(0)

    def end_core(self) -> int:
        """Close the link, wait for the engine core's end; its status."""
        if self.link is not None:
            self.link.close()
        if self.core_status is None:
            self.core_status = os.waitpid(self.core_pid, 0)[1]
        return self.core_status

    async def serve(self, plan: Plan, listener: socket.socket) -> int:
        """Answer HTTP until a signal comes or the engine dies."""
        loop = asyncio.get_event_loop()
        per_token = kv_bytes_per_token(plan.checkpoint.config, int(plan.flags["tensor_parallel_size"]))
        cache = kv_tokens(plan.sums.kv_cache, per_token)
        load = Load(self.figures["serving"], int(plan.flags["max_num_seqs"]), cache)
        api = Api(self.figures, plan.flags, load)
        ended: "asyncio.Future[str]" = loop.create_future()

        def end(why: str) -> None:
            if not ended.done():
                ended.set_result(why)

        assert self.link is not None
        link = self.link

        def engine_is_gone() -> None:
            loop.remove_reader(link)
            end("engine")

        loop.add_reader(link, engine_is_gone)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, "signal")
        self.log_routes(plan, listener)
        server = await loop.create_server(lambda: Connection(api.handle, self.log), sock=listener, backlog=2048)
        self.log.raw("INFO:     Application startup complete.")
        stats = loop.create_task(self.log_stats(load))
        why = await ended
        if why == "engine" and self.end_core() == 0:
            why = "signal"  # systemd tells all processes at once; the engine core was only faster
        stats.cancel()
        api.is_dead = True
        if why == "engine":
            self.report_dead_engine()
        server.close()
        self.log.raw("INFO:     Shutting down")
        if self.core_status is None:
            loop.remove_reader(link)
            self.end_core()
        self.log.raw("INFO:     Waiting for application shutdown.")
        self.log.raw("INFO:     Application shutdown complete.")
        if why == "signal":
            return 0
        self.log.raw("INFO:     Finished server process [%d]" % os.getpid())
        return int(self.figures["engine_dead_exit_status"])

    def log_routes(self, plan: Plan, listener: socket.socket) -> None:
        """Everything between "ready" and "startup complete"."""
        log = self.log
        log.line("tasks", "Supported tasks: ['generate']")
        log.line(
            "sampling",
            "Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: "
            "`{'temperature': 1.0, 'top_k': 40, 'top_p': 0.95}`. If this is not intended, please relaunch vLLM "
            "instance with `--generation-config vllm`.",
            "WARNING",
        )
        host = plan.flags.get("host") or "0.0.0.0"  # noqa: S104
        log.line("starting", "Starting vLLM API server 0 on http://%s:%d" % (host, listener.getsockname()[1]))
        log.line("routes", "Available routes are:")
        for path, methods in ROUTES:
            log.line("route", "Route: %s, Methods: %s" % (path, methods))
        log.raw("INFO:     Started server process [%d]" % os.getpid())
        log.raw("INFO:     Waiting for application startup.")

    async def log_stats(self, load: Load) -> None:
        """One line per ten seconds while something happens."""
        before = dict(load.counters)
        was_idle = True
        while True:
            await asyncio.sleep(LOADING_STATS_S)
            now = dict(load.counters)
            rates = [(now[k] - before[k]) / LOADING_STATS_S for k in ("prompt_tokens", "generation_tokens")]
            is_idle = not any(rates) and not load.running
            if not (is_idle and was_idle):
                hits = 100 * now["prefix_cache_hits"] / max(1.0, now["prefix_cache_queries"])
                self.log.line(
                    "stats",
                    "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
                    "Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%"
                    % (*rates, len(load.running), len(load.waiting), 100 * load.cache_usage(), hits),
                )
            before, was_idle = now, is_idle

    def report_dead_engine(self) -> None:
        """The API server's own traceback about an engine that is gone."""
        message = (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
            "See stack trace (above) for the root cause."
        )
        lines = ["AsyncLLM output_handler failed.", *tb.traceback_lines(tb.API_OUTPUT, message)]
        self.log.lines("output_handler", lines)


def visible_gpus(count: int) -> List[int]:
    """The GPU indices that CUDA_VISIBLE_DEVICES leaves."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(count))
    return [int(part) for part in text.split(",") if part.strip().isdigit() and int(part) < count]


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
    given = parse_serve(argv[1:])
    tag = given.pop("model_tag", None)
    given["model"] = tag or given.get("model") or "Qwen/Qwen3-0.6B"
    status = Server(settings, {"model": given.pop("model"), **given}).run()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
