"""One worker process of the stand-in engine: takes GPU memory stage by stage, logs it, and fails where vLLM would."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from typing import Any, Dict, NoReturn, Optional, Tuple

from opslib.rehearsal.standin import engine_tracebacks as tb
from opslib.rehearsal.standin.engine_gpu import GpuShare, gib
from opslib.rehearsal.standin.engine_log import Log, name_process
from opslib.rehearsal.standin.engine_memory import GIB
from opslib.rehearsal.standin.engine_plan import Plan, StageError

HEARTBEAT_S = 0.5
BARS = 20  # states of the loading bar that are worth a line in a short load


class Worker:
    """Rank `rank` on its GPU; the parent sends one word per stage and gets one JSON line back."""

    def __init__(self, rank: int, plan: Plan, link: socket.socket) -> None:
        self.rank = rank
        self.plan = plan
        self.link = link
        world = int(plan.flags["tensor_parallel_size"])
        self.log = Log("Worker_TP%d" % rank if world > 1 else "Worker")
        self.title = "VLLM::" + self.log.process
        self.gpu = GpuShare(rank, plan, self.title)
        self.is_warm = False

    def run(self) -> NoReturn:
        """Serve stages until the parent is gone or says stop."""
        name_process(self.title)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stages = {"start": self.start, "profile": self.profile, "warmup": self.warmup}
        source = "worker_start"
        while True:
            word = self.next_word()
            if word is None:
                self.end()
            try:
                answer = stages[word]()
            except StageError as failure:
                kind = "WorkerProc failed to start." if word == "start" else "WorkerProc hit an exception."
                source = "worker_start" if word == "start" else "worker_loop"
                self.log.lines(source, [kind, *failure.lines], pause_s=0.0004)
                answer = {"error": failure.message}
            self.link.sendall(json.dumps(answer).encode() + b"\n")

    def next_word(self) -> Optional[str]:
        """The parent's next word, None when it is gone; shows a sign of life meanwhile."""
        life_s = float(self.plan.figures.get("worker_dies_after_s") or 0)
        began = time.monotonic()
        while True:
            readable, _, _ = select.select([self.link], [], [], HEARTBEAT_S)
            self.plan.ledger.beat()
            if life_s and self.is_warm and self.rank == 0 and time.monotonic() - began > life_s:
                os.kill(os.getpid(), signal.SIGKILL)
            if readable:
                word = self.link.recv(100).decode().strip()
                return word if word and word != "stop" else None

    def end(self) -> NoReturn:
        """Give the memory back and be gone; status 0."""
        self.plan.ledger.release()
        os._exit(0)

    def start(self) -> Dict[str, Any]:
        """Device, NCCL and weights."""
        world = int(self.plan.flags["tensor_parallel_size"])
        self.plan.sleep(self.plan.seconds("workers"))
        self.log.line(
            "world",
            "world_size=%d rank=%d local_rank=%d distributed_init_method=tcp://127.0.0.1:%d backend=nccl"
            % (world, self.rank, self.rank, 40000 + os.getppid() % 20000),
        )
        self.plan.sleep(self.plan.seconds("distributed") / 2)
        if world > 1:
            self.log.line("nccl", "vLLM is using nccl==2.27.5")
        self.hang_after("distributed")
        self.plan.sleep(self.plan.seconds("distributed") / 2)
        if world > 1:
            self.communicators(world)
        self.log.line(
            "rank",
            "rank %d in world size %d is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank %d, EP rank N/A"
            % (self.rank, world, self.rank),
        )
        self.gpu.check_free()
        self.gpu.take(self.plan.sums.context, tb.WORKER_DEVICE)
        self.load()
        return {}

    def communicators(self, world: int) -> None:
        """The routine warnings of a PCIe machine."""
        self.log.line(
            "symm_mem",
            "SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available.",
            "WARNING",
        )
        if world > 2 and not self.plan.flags.get("disable_custom_all_reduce"):
            self.log.line(
                "all_reduce",
                "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence "
                "this warning, specify disable_custom_all_reduce=True explicitly.",
                "WARNING",
            )

    def load(self) -> None:
        """The weights, shard by shard."""
        plan = self.plan
        self.log.line("load", "Starting to load model %s..." % plan.flags["model"])
        if self.rank == 0:
            self.log.line(
                "attention",
                "Using FLASH_ATTN attention backend out of potential backends: "
                "('FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION')",
            )
            if plan.checkpoint.config.get("num_local_experts"):
                self.log.line("moe_backend", "Using Triton backend for FP8 MoE")
        fault = plan.checkpoint.fault
        shards = len(plan.checkpoint.shards)
        fault_at = shards if fault is None else fault[2]
        seconds = plan.seconds("weights")
        per_gpu = plan.sums.weights
        if per_gpu + plan.sums.context > plan.ledger.total_bytes / GIB:
            self.gpu.take(per_gpu, tb.WORKER_CREATE)
        if fault_at >= 0:
            self.read_shards(shards, fault_at, seconds, per_gpu)
        if fault is not None:
            kind, message, _ = fault
            frames = tb.WORKER_MISSING if kind == "FileNotFoundError" else tb.WORKER_TRUNCATED
            raise StageError(tb.traceback_lines(frames, "%s: %s" % (kind, message)), message)
        if self.rank == 0:
            self.log.line("loaded", "Loading weights took %.2f seconds" % (seconds * 0.97))
        self.log.line(
            "weights",
            "Model loading took %s GiB memory and %.6f seconds" % (gib(per_gpu), seconds + 0.213 + 0.07 * self.rank),
        )
        self.hang_after("weights")

    def read_shards(self, shards: int, stop_at: int, seconds: float, per_gpu: float) -> None:
        """Take the weights' memory in steps; rank 0 draws the bar."""
        step = max(1, shards // BARS)
        before = self.gpu.held
        done = 0
        while True:
            if self.rank == 0:
                self.log.shard_bar(done, shards, seconds * done / shards)
            if done >= stop_at or done >= shards:
                return
            following = min(done + step, shards, max(stop_at, done + 1))
            self.plan.sleep(seconds * (following - done) / shards)
            done = following
            self.gpu.set_held(before + int(per_gpu * GIB * done / shards), tb.WORKER_CREATE)

    def profile(self) -> Dict[str, Any]:
        """torch.compile and the profile run; answers the KV cache memory in GiB."""
        plan, log = self.plan, self.log
        if not plan.flags.get("enforce_eager"):
            self.compile()
        if self.rank == 0 and plan.checkpoint.config.get("num_local_experts"):
            n_experts, inter = experts(plan)
            name = plan.gpu_name.replace(" ", "_")
            log.line(
                "moe_config",
                "Using default MoE config. Performance might be sub-optimal! Config file not found at "
                "['%svllm/model_executor/layers/fused_moe/configs/E=%d,N=%d,device_name=%s,dtype=fp8_w8a8,"
                "block_shape=[128,128].json']" % (tb.SITE, n_experts, inter, name),
                "WARNING",
            )
        plan.sleep(plan.seconds("profile"))
        self.gpu.take(plan.sums.peak, tb.WORKER_PROFILE)
        self.gpu.take(-plan.sums.peak, tb.WORKER_PROFILE)
        log.line("kv_memory", "Available KV cache memory: %s GiB" % gib(plan.sums.kv_cache))
        return {"kv_cache_gib": plan.sums.kv_cache}

    def compile(self) -> None:
        """What torch.compile says."""
        seconds = self.plan.seconds("compile")
        self.plan.sleep(seconds * 0.6)
        folder = "/root/.cache/vllm/torch_compile_cache/4f2b9c1d7e/rank_%d_0/backbone" % self.rank
        self.log.line("compile_dir", "Using cache directory: %s for vLLM's torch.compile" % folder)
        self.log.line("dynamo", "Dynamo bytecode transform time: %.2f s" % (seconds * 0.6))
        self.plan.sleep(seconds * 0.4)
        if self.rank == 0:
            limit = self.plan.flags["max_num_batched_tokens"]
            self.log.line(
                "compile_range", "Compiling a graph for compile range (1, %d) takes %.2f s" % (limit, seconds * 0.4)
            )
        self.log.line("compiled", "torch.compile takes %.2f s in total" % (seconds + 0.04 * self.rank))
        self.hang_after("compile")

    def warmup(self) -> Dict[str, Any]:
        """KV cache, CUDA graphs, and the sampler once more in what is left."""
        plan = self.plan
        self.gpu.take(plan.sums.kv_cache, tb.WORKER_PROFILE)
        if not plan.flags.get("enforce_eager"):
            self.capture()
        self.gpu.take(plan.sums.fragmentation, tb.WORKER_GRAPHS)
        plan.sleep(plan.seconds("warmup"))
        self.warm_sampler()
        self.is_warm = True
        return {}

    def capture(self) -> None:
        """The two capture bars."""
        seconds = self.plan.seconds("graphs")
        self.plan.sleep(seconds * 0.6)
        if self.rank == 0:
            self.log.graph_bar("mixed prefill-decode, PIECEWISE", 51, seconds * 0.6)
        self.gpu.take(self.plan.sums.graphs, tb.WORKER_GRAPHS)
        self.plan.sleep(seconds * 0.4)
        if self.rank == 0:
            self.log.graph_bar("decode, FULL", 35, seconds * 0.4)
        self.log.line("graphs", "Graph capturing finished in %d secs, took %.2f GiB" % (seconds, self.plan.sums.graphs))
        self.hang_after("graphs")

    def warm_sampler(self) -> None:
        """vllm/v1/worker/gpu_model_runner.py _dummy_sampler_run, after the graphs are captured."""
        need, sequences = self.plan.sums.sampler, int(self.plan.flags["max_num_seqs"])
        if self.gpu.free_gib() >= need:
            return
        vocabulary = int(self.plan.checkpoint.config["vocab_size"])
        piece = 3 * sequences * vocabulary * 4 / GIB  # the sort's scratch: 12 bytes per logit
        message = (
            "CUDA out of memory occurred when warming up sampler with %d dummy requests. Please try lowering "
            "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine." % sequences
        )
        inner = tb.traceback_lines(tb.SAMPLER, self.gpu.out_of_memory(piece))
        outer = tb.traceback_lines(tb.WORKER_WARMUP, "RuntimeError: " + message)
        raise StageError(inner + tb.CAUSED + outer, message)

    def hang_after(self, phase: str) -> None:
        """Where the scenario says so: alive and silent for ever."""
        while self.plan.figures.get("hang_after") == phase:
            self.plan.ledger.beat()
            readable, _, _ = select.select([self.link], [], [], HEARTBEAT_S)
            if readable:
                self.end()


def experts(plan: Plan) -> Tuple[int, int]:
    """Experts, and the intermediate size per rank, as the MoE config's file name says them."""
    config = plan.checkpoint.config
    inter = int(config.get("intermediate_size") or 0)
    return int(config["num_local_experts"]), inter // int(plan.flags["tensor_parallel_size"])
