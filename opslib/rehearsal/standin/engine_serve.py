"""The API server of the stand-in engine from "ready" to its end: HTTP, statistics, and what is said when it stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Callable

from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_api import ROUTES, Api
from opslib.rehearsal.standin.engine_http import Connection
from opslib.rehearsal.standin.engine_load import Load
from opslib.rehearsal.standin.engine_log import Log
from opslib.rehearsal.standin.engine_memory import kv_bytes_per_token, kv_tokens
from opslib.rehearsal.standin.engine_plan import Plan

STATS_S = 10.0
DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause."
)


class Serving:
    """Answers HTTP on `listener` until a signal comes or `link` (to the engine core) is closed from the other side."""

    def __init__(self, plan: Plan, listener: socket.socket, link: socket.socket, log: Log) -> None:
        per_token = kv_bytes_per_token(plan.checkpoint.config, int(plan.flags["tensor_parallel_size"]))
        cache = kv_tokens(plan.sums.kv_cache, per_token)
        self.plan = plan
        self.listener = listener
        self.link = link
        self.log = log
        self.load = Load(plan.figures["serving"], int(plan.flags["max_num_seqs"]), cache)
        self.api = Api(plan.figures, plan.flags, self.load)

    async def run(self, end_core: Callable[[], int]) -> int:
        """The exit status; `end_core` ends the engine core's process and says its status."""
        self.log_routes()
        loop = asyncio.get_event_loop()
        server = await loop.create_server(
            lambda: Connection(self.api.handle, self.log), sock=self.listener, backlog=2048
        )
        self.log.raw("INFO:     Application startup complete.")
        stats = loop.create_task(self.log_stats())
        why = await self.until_ended()
        if end_core() == 0:
            why = "signal"  # systemd tells all processes at once; the engine core was only faster
        stats.cancel()
        if why == "engine":
            self.report_dead_engine()
        server.close()
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.log.raw("INFO:     " + text)
        if why == "signal":
            return 0
        self.log.raw("INFO:     Finished server process [%d]" % os.getpid())
        return int(self.plan.figures["engine_dead_exit_status"])

    async def until_ended(self) -> str:
        """Wait; "signal" or "engine"."""
        loop = asyncio.get_event_loop()
        ended: "asyncio.Future[str]" = loop.create_future()

        def end(why: str) -> None:
            if not ended.done():
                ended.set_result(why)

        loop.add_reader(self.link, end, "engine")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, "signal")
        why = await ended
        loop.remove_reader(self.link)
        return why

    def log_routes(self) -> None:
        """Everything between "ready" and "startup complete"."""
        log, flags = self.log, self.plan.flags
        log.line("tasks", "Supported tasks: ['generate']")
        log.line(
            "sampling",
            "Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: "
            "`{'temperature': 1.0, 'top_k': 40, 'top_p': 0.95}`. If this is not intended, please relaunch vLLM "
            "instance with `--generation-config vllm`.",
            "WARNING",
        )
        host = flags.get("host") or "0.0.0.0"  # noqa: S104
        log.line("starting", "Starting vLLM API server 0 on http://%s:%d" % (host, self.listener.getsockname()[1]))
        log.line("routes", "Available routes are:")
        for path, methods in ROUTES:
            log.line("route", "Route: %s, Methods: %s" % (path, methods))
        log.raw("INFO:     Started server process [%d]" % os.getpid())
        log.raw("INFO:     Waiting for application startup.")

    async def log_stats(self) -> None:
        """One line per ten seconds while something happens."""
        load = self.load
        before, was_idle = dict(load.counters), True
        while True:
            await asyncio.sleep(STATS_S)
            now = dict(load.counters)
            rates = [(now[name] - before[name]) / STATS_S for name in ("prompt_tokens", "generation_tokens")]
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
        """The API server's own traceback about an engine that is gone; open requests fail."""
        lines = ["AsyncLLM output_handler failed.", *tb.traceback_lines(tb.API_OUTPUT, DEAD)]
        self.log.lines("output_handler", lines)
        self.api.fail_all()
