"""The stand-in's EngineCore process: starts the workers, decides about the KV cache, watches that all live."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, NoReturn, Optional

from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_log import Log, name_process
from opslib.rehearsal.standin.engine_memory import GIB, KV_BLOCK_TOKENS, kv_bytes_per_token, kv_tokens
from opslib.rehearsal.standin.engine_plan import Plan
from opslib.rehearsal.standin.engine_worker import Worker

POLL_S = 0.1
BROADCAST_NOTICE_S = 60.0
NOT_READY = (
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)


class StartError(Exception):
    """The engine core cannot start: frames and exception of its own traceback."""

    def __init__(self, frames: List[tb.Frame], exception: str) -> None:
        super().__init__(exception)
        self.frames = frames
        self.exception = exception


class WorkerDiedError(Exception):
    """A worker process is gone without having been told to."""

    def __init__(self, rank: int) -> None:
        super().__init__("worker %d died" % rank)
        self.rank = rank


class EngineCore:
    """Talks to the workers over socket pairs and to the API server over `link`."""

    def __init__(self, plan: Plan, link: socket.socket) -> None:
        self.plan = plan
        self.link = link
        self.log = Log("EngineCore_DP0")
        self.world = int(plan.flags["tensor_parallel_size"])
        self.workers: Dict[int, int] = {}  # pid -> rank
        self.links: List[socket.socket] = []

    def run(self) -> NoReturn:
        """Start, serve until told to stop, and end with vLLM's words."""
        name_process("VLLM::EngineCore")
        signal.signal(signal.SIGTERM, lambda *_: self.end(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.start()
        except StartError as failure:
            self.report_start(failure)
            self.end(1)
        except WorkerDiedError:
            self.report_start(StartError(tb.CORE_EXECUTOR, "Exception: " + NOT_READY))
            self.end(1)
        self.link.sendall(b"ready\n")
        try:
            self.watch([], None)
        except WorkerDiedError as death:
            self.report_death(death.rank)
            self.end(1)
        self.end(0)

    def end(self, status: int) -> NoReturn:
        """Tell the workers, wait for them shortly, and be gone."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for link in self.links:
            link.close()
        for pid in list(self.workers):
            with contextlib.suppress(ChildProcessError):  # the signal came between its burial and its deletion
                wait_shortly(pid)
        os._exit(status)

    def start(self) -> None:
        """All stages up to "init engine took"."""
        plan, seconds = self.plan, self.plan.seconds
        plan.sleep(seconds("engine_core"))
        self.log.line("init_engine", "Initializing a V1 LLM engine (v%s) with config: %s" % self.configuration())
        self.log.line(
            "threads",
            "Reducing Torch parallelism from 96 threads to 1 to avoid unnecessary CPU contention. Set OMP_NUM_THREADS "
            "in the external environment to tune this value as needed.",
            "WARNING",
        )
        self.fork_workers()
        self.stage("start", tb.CORE_EXECUTOR)
        available = min(answer["kv_cache_gib"] for answer in self.stage("profile", tb.CORE_KV + tb.CORE_RPC))
        self.size_cache(available)
        self.stage("warmup", tb.CORE_KV + tb.CORE_RPC)
        took = sum(seconds(name) for name in ("compile", "profile", "graphs", "warmup"))
        self.log.line("init_done", "init engine (profile, create kv cache, warmup model) took %.2f seconds" % took)

    def configuration(self) -> Any:
        """(version, the long line of settings)."""
        flags = self.plan.flags
        model = flags["model"]
        text = (
            "model=%r, speculative_config=None, tokenizer=%r, skip_tokenizer_init=False, tokenizer_mode=auto, "
            "revision=None, tokenizer_revision=None, trust_remote_code=%s, dtype=torch.bfloat16, max_seq_len=%d, "
            "download_dir=None, load_format=auto, tensor_parallel_size=%d, pipeline_parallel_size=1, "
            "data_parallel_size=1, disable_custom_all_reduce=%s, quantization=%s, enforce_eager=%s, "
            "kv_cache_dtype=%s, device_config=cuda, seed=0, served_model_name=%s, enable_prefix_caching=True, "
            "enable_chunked_prefill=True"
            % (
                model,
                model,
                bool(flags.get("trust_remote_code")),
                flags["max_model_len"],
                self.world,
                bool(flags.get("disable_custom_all_reduce")),
                (self.plan.checkpoint.config.get("quantization_config") or {}).get("quant_method"),
                bool(flags.get("enforce_eager")),
                flags.get("kv_cache_dtype", "auto"),
                (flags.get("served_model_name") or [model])[0],
            )
        )
        return self.plan.figures["version"], text

    def fork_workers(self) -> None:
        """One process per rank."""
        for rank in range(self.world):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                self.link.close()
                for link in self.links:
                    link.close()
                Worker(rank, self.plan, theirs).run()
            theirs.close()
            self.links.append(ours)
            self.workers[pid] = rank

    def stage(self, word: str, frames: List[tb.Frame]) -> List[Dict[str, Any]]:
        """Have all workers do one stage; raises StartError with the first worker's error."""
        for link in self.links:
            with contextlib.suppress(OSError):  # that worker is dead: `watch` says so
                link.sendall(word.encode())
        answers = self.watch(list(self.links), word)
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors and word == "start":
            raise StartError(frames, "Exception: " + NOT_READY)
        if errors:
            raise StartError(
                frames,
                "RuntimeError: Worker failed with error '%s', please check the stack trace above for the root cause"
                % errors[0],
            )
        return answers

    def watch(self, waiting: List[socket.socket], word: Optional[str]) -> List[Dict[str, Any]]:
        """Wait for one line per link (for ever without any), while parent and workers live."""
        answers: List[Dict[str, Any]] = []
        noticed_at = time.monotonic()
        while waiting or word is None:
            readable, _, _ = select.select([self.link, *waiting], [], [], POLL_S)
            if self.link in readable and not self.link.recv(64):
                self.end(0)  # the API server is gone
            for link in [ready for ready in readable if ready in waiting]:
                data = link.recv(65536)
                waiting.remove(link)
                if data:
                    answers.append(json.loads(data))
            self.bury()
            is_silent = time.monotonic() - noticed_at > BROADCAST_NOTICE_S / self.plan.clock_factor
            if is_silent and waiting and self.plan.figures.get("hang_after"):
                noticed_at = time.monotonic()
                self.log.line(
                    "broadcast",
                    "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
                    "processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache "
                    "quantization).",
                )
        return answers

    def bury(self) -> None:
        """Notice dead workers; one that ended with status 0 was told to stop."""
        for pid, rank in list(self.workers.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.workers[pid]
                if status != 0:
                    raise WorkerDiedError(rank)
                self.end(0)

    def size_cache(self, available: float) -> None:
        """vllm/v1/core/kv_cache_utils.py: refuse too small a cache, else say what fits."""
        flags, config = self.plan.flags, self.plan.checkpoint.config
        per_token = kv_bytes_per_token(config, self.world)
        limit = int(flags["max_model_len"])
        need = per_token * -(-limit // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS / GIB
        tokens = kv_tokens(available, per_token)
        advice = " See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        if available <= 0:
            message = (
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                "the engine." + advice
            )
            raise StartError(tb.CORE_KV + tb.CORE_KV_CHECK, "ValueError: " + message)
        if need > available:
            message = (
                "To serve at least one request with the models's max seq len (%d), (%.2f GiB KV cache is needed, which "
                "is larger than the available KV cache memory (%.2f GiB). Based on the available memory, the estimated "
                "maximum model length is %d. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
                "when initializing the engine." % (limit, need, available, tokens)
            )
            raise StartError(tb.CORE_KV + tb.CORE_KV_CHECK, "ValueError: " + message + advice)
        self.log.line("kv_size", "GPU KV cache size: {:,} tokens".format(tokens))
        self.log.line(
            "concurrency",
            "Maximum concurrency for {:,} tokens per request: {:.2f}x".format(limit, tokens / limit),
        )

    def report_start(self, failure: StartError) -> None:
        """The logged traceback, then the same once more as multiprocessing prints it."""
        time.sleep(0.02)  # the workers' last lines come first
        logged = tb.traceback_lines(failure.frames, failure.exception)
        self.log.lines("core_start", ["EngineCore failed to start.", *logged])
        self.log.raw("Process EngineCore_DP0:")
        for line in tb.traceback_lines(tb.CORE_PROCESS + failure.frames, failure.exception):
            self.log.raw(line)

    def report_death(self, rank: int) -> None:
        """What is said when a worker vanishes while serving."""
        self.log.line(
            "worker_died", "Worker proc VllmWorker-%d died unexpectedly, shutting down executor." % rank, "ERROR"
        )
        self.log.lines(
            "core_fatal",
            [
                "EngineCore encountered a fatal error.",
                *tb.traceback_lines(tb.CORE_FATAL, "RuntimeError: Executor failed."),
            ],
        )


def wait_shortly(pid: int) -> None:
    """Wait a second for a child's end, then kill it."""
    for _ in range(40):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.025)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
