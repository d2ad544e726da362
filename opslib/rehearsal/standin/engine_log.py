"""Writing lines as vLLM 0.15 does: a process prefix on every line, level, time, source file."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Iterable

# who logs what from which line of vLLM 0.15's source
SOURCES = {
    "banner": "utils.py:325",
    "args": "utils.py:261",
    "ulimit": "system_utils.py:255",
    "architecture": "model.py:541",
    "max_len": "model.py:1561",
    "chunked": "scheduler.py:226",
    "async": "vllm.py:624",
    "init_engine": "core.py:96",
    "threads": "multiproc_executor.py:910",
    "world": "parallel_state.py:1212",
    "nccl": "pynccl.py:111",
    "symm_mem": "symm_mem.py:67",
    "all_reduce": "custom_all_reduce.py:154",
    "rank": "parallel_state.py:1423",
    "load": "gpu_model_runner.py:4033",
    "attention": "cuda.py:364",
    "moe_backend": "fp8.py:384",
    "moe_config": "fused_moe.py:1090",
    "loaded": "default_loader.py:291",
    "weights": "gpu_model_runner.py:4130",
    "compile_dir": "backends.py:812",
    "dynamo": "backends.py:872",
    "compile_range": "backends.py:302",
    "compiled": "monitor.py:34",
    "kv_memory": "gpu_worker.py:356",
    "kv_size": "kv_cache_utils.py:1307",
    "concurrency": "kv_cache_utils.py:1312",
    "graphs": "gpu_model_runner.py:5051",
    "init_done": "core.py:272",
    "broadcast": "shm_broadcast.py:542",
    "worker_start": "multiproc_executor.py:772",
    "worker_loop": "multiproc_executor.py:852",
    "worker_died": "multiproc_executor.py:246",
    "parent_gone": "multiproc_executor.py:730",
    "core_start": "core.py:946",
    "core_fatal": "core.py:955",
    "tasks": "api_server.py:665",
    "sampling": "model.py:1371",
    "template": "hf.py:310",
    "starting": "api_server.py:946",
    "routes": "launcher.py:38",
    "route": "launcher.py:46",
    "stats": "loggers.py:257",
    "output_handler": "async_llm.py:699",
}


class Log:
    """One process's lines; each goes out in one write, so that processes interleave by whole lines."""

    def __init__(self, process: str) -> None:
        self.process = process

    def raw(self, text: str) -> None:
        """A line without level and time, as a traceback or uvicorn prints it; the prefix is vLLM's `decorate_logs`."""
        line = "(%s pid=%d) %s\n" % (self.process, os.getpid(), text)
        data = line.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            pass  # nobody reads any more

    def line(self, source: str, text: str, level: str = "INFO") -> None:
        """A line of vLLM's logger; `source` is a key of SOURCES."""
        stamp = time.strftime("%m-%d %H:%M:%S")
        self.raw("%s %s [%s] %s" % (level, stamp, SOURCES[source], text))

    def lines(self, source: str, texts: Iterable[str], level: str = "ERROR", pause_s: float = 0.0) -> None:
        """A traceback through the logger: every line has the same head."""
        for text in texts:
            self.line(source, text, level)
            if pause_s:
                time.sleep(pause_s)

    def shard_bar(self, done: int, total: int, elapsed_s: float) -> None:
        """One state of the loader's progress bar (its format ends in a newline; the carriage return is tqdm's)."""
        percent = 100 * done // total
        if done == 0:
            tail = "[00:00<?, ?it/s]"
        else:
            rate = done / max(elapsed_s, 0.001)
            speed = "%5.2fit/s" % rate if rate >= 1 else "%5.2fs/it" % (1 / rate)
            tail = "[%s<%s, %s]" % (clock(elapsed_s), clock((total - done) / rate), speed)
        counted = "%d/%d" % (done, total)
        self.raw("\rLoading safetensors checkpoint shards: %3d%% Completed | %s %s" % (percent, counted, tail))

    def graph_bar(self, kind: str, total: int, seconds: float) -> None:
        """A whole capture bar: all its states are one line, since this one only ends with a newline when closed."""
        states = []
        for done in (0, total // 2, total):
            blocks = "█" * (10 * done // total) + " " * (10 - 10 * done // total)
            elapsed = seconds * done / total
            rate = "?it/s" if done == 0 else "%5.2fit/s" % (total / seconds)
            left = "?" if done == 0 else clock(seconds - elapsed)
            states.append(
                "\rCapturing CUDA graphs (%s): %3d%%|%s| %d/%d [%s<%s, %s]"
                % (kind, 100 * done // total, blocks, done, total, clock(elapsed), left, rate)
            )
        self.raw("".join(states))


def clock(seconds: float) -> str:
    """`01:07`, as tqdm writes times."""
    return "%02d:%02d" % divmod(int(seconds), 60)


def name_process(title: str) -> None:
    """The name that ss, top and the kernel's own lines show (they cut it to 15 characters)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(title)
