"""What a benchmark found: figures of each level, named as in vLLM's own benchmark."""

from collections.abc import Mapping
from typing import Literal

from opslib.domain.states import CheckResult, State, Value


class Percentiles(Value):
    """How one figure is distributed over all its samples (`n` of them), in ms."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    std: float = 0.0
    n: int = 0


class Interval(Value):
    """Where a figure lies with 95 % confidence, by the bootstrap over requests."""

    low: float
    high: float


class Histogram(Value):
    """How many samples lie between each two `edges` (ms, in equal ratios)."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Slo(Value):
    """What users accept, in ms; a request counts for goodput if it is within every bound that is set."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_latency_ms: float | None = None


class ServerSample(Value):
    """What /metrics said `at_s` seconds into a level; None where the server has no such gauge."""

    at_s: float
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None


class GpuSample(Value):
    """One row of nvidia-smi's loop, `at_s` seconds into a level; None where it says [N/A]."""

    at_s: float
    index: int
    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()


class GpuLoad(Value):
    """What one GPU did during a level."""

    index: int
    memory_used_max_bytes: int | None = None
    utilization_mean_percent: float | None = None
    power_mean_w: float | None = None
    sm_clock_mean_mhz: float | None = None
    sm_clock_min_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()


class BenchmarkLevel(Value):
    """The figures of one level, named as in vLLM's own benchmark; latencies in ms, throughput per second.

    A level is a number of streams (`concurrency`) or, open loop, a `request_rate` per second; then `concurrency` is
    the most that were open at once, `ttft_ms` and `e2e_latency_ms` count from the *intended* start, and the `_sent_`
    figures from the real one. `itl_ms` is over the gaps between chunks, `tpot_ms` of each request is
    (e2e_latency - ttft) / (tokens - 1). Where the server counts no tokens, `counted_in` says that chunks were counted
    instead. A level that was run several times holds all samples; `repeats` has each run's own figures by name
    ("output_throughput", "ttft_ms.p50"), `intervals` the 95 % interval of the same names.
    """

    concurrency: int
    request_rate: float | None = None
    arrival: str | None = None  # of an open loop: constant, poisson, gamma, burst, ramp, trace
    input_tokens: int | None = None  # where the level asked for a prompt length of its own
    n_requests: int
    n_errors: int
    errors: Mapping[str, int] = {}
    error_messages: Mapping[str, str] = {}
    duration_s: float
    request_throughput: float
    output_throughput: float
    input_throughput: float = 0.0
    request_goodput: float | None = None
    output_throughput_per_user: float | None = None  # mean over requests of 1000 / tpot_ms
    output_throughput_per_gpu: float | None = None
    steady_output_throughput: float | None = None  # while at least 95 % of the streams were open
    total_input_tokens: int
    total_output_tokens: int
    counted_in: Literal["tokens", "chunks"] = "tokens"
    chunks_per_token: float | None = None
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    e2e_latency_ms: Percentiles | None = None
    ttft_sent_ms: Percentiles | None = None
    e2e_latency_sent_ms: Percentiles | None = None
    send_delay_ms: Percentiles | None = None
    intervals: Mapping[str, Interval] = {}
    repeats: tuple[Mapping[str, float], ...] = ()
    histograms: Mapping[str, Histogram] = {}  # of ttft_ms, tpot_ms, itl_ms, e2e_latency_ms
    client_cpu_share: float = 0.0  # the busiest process's
    loop_lag_p99_ms: float = 0.0
    n_processes: int = 1
    event_loop: str = "asyncio"
    is_client_bound: bool = False  # the figures say nothing about the service
    prefix_cache_hit_share: float | None = None
    server_ttft_mean_ms: float | None = None
    server_queue_time_mean_ms: float | None = None
    n_preemptions: int | None = None
    running_max: float | None = None
    waiting_max: float | None = None
    kv_cache_usage_max: float | None = None
    server_samples: tuple[ServerSample, ...] = ()  # of the last repeat
    gpu_samples: tuple[GpuSample, ...] = ()  # of the last repeat
    gpus: tuple[GpuLoad, ...] = ()
    is_valid: bool = True
    why_invalid: tuple[str, ...] = ()

    @property
    def error_share(self) -> float:
        """Failed requests per request."""
        return self.n_errors / self.n_requests if self.n_requests else 0.0

    @property
    def name(self) -> str:
        """What the level is called: "concurrency 8", "4 requests/s", with its own prompt length where it has one."""
        own = f"{self.request_rate:g} requests/s" if self.request_rate else f"concurrency {self.concurrency}"
        return own if self.input_tokens is None else f"{own}, {self.input_tokens:,} input tokens"


class BenchmarkReport(Value):
    """What a load's levels found, and whether it is a result.

    `saturation_concurrency` (of a sweep that searched for it) is the last level before the one that `stop_reason`
    names; `knee_concurrency` is found in the levels that there are.
    """

    state: State
    summary: str
    levels: tuple[BenchmarkLevel, ...]
    checks: tuple[CheckResult, ...]
    knee_concurrency: int | None = None
    saturation_concurrency: int | None = None
    stop_reason: str = ""
    slo: Slo | None = None
    n_repeats: int = 1
    host: str = ""
    model: str = ""
