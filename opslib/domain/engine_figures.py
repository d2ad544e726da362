"""The figures that an engine prints while it starts: version, arguments, and where its GPU memory went."""

import ast
import re
from collections.abc import Iterable, Mapping

from opslib.domain.engine_line import parse_log_line, size_bytes
from opslib.domain.states import Value

_SIZE = r"(?P<{0}>-?\d+(?:\.\d+)?) (?P<{0}_unit>GiB|MiB|KiB|GB|MB|bytes)"


def _pattern(template: str, *sizes: str) -> re.Pattern[str]:
    for name in sizes:
        template = template.replace(f"<{name}>", _SIZE.format(name))
    return re.compile(template)


_VERSION = re.compile(
    r"(?:vLLM API server version |LLM engine \(v|^[\W_]{0,40}version )(?P<version>\d+\.\d+[\w.+-]*)"
    r"|^vLLM version (?P<other>\d\S*)"
)
_ARGUMENTS = re.compile(r"non-default args: (?P<arguments>\{.*\})")
_WEIGHTS = _pattern(r"(?:Model loading took|Loading model weights took) <size>", "size")
_AVAILABLE_KV = _pattern(r"Available KV cache memory: <size>|Explicitly set \((?P<cpu>[\d.]+)/", "size")
_KV_TOKENS = re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: (?P<times>[\d.]+)x")
_GRAPHS = _pattern(r"Graph capturing finished in [\d.]+ secs?, took <size>", "size")
_SIZES = (("weights_bytes", _WEIGHTS), ("available_kv_cache_bytes", _AVAILABLE_KV), ("cuda_graphs_bytes", _GRAPHS))
_DUMMY = re.compile(r"warming up sampler with (?P<n>\d+) dummy requests")
_OOM = _pattern(
    r"out of memory\. Tried to allocate <tried>\. GPU (?P<device>\d+) has a total capacity of <total> "
    r"of which <free> is free",
    "tried",
    "total",
    "free",
)
_FREE_BELOW = re.compile(
    r"Free memory on device (?:cuda:(?P<device>\d+) )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
    r"is less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
_KV_NEEDED = re.compile(
    r"max seq len \((?P<max_model_len>\d+)\), \(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger "
    r"than the available KV cache memory \((?P<available>[\d.]+) GiB\)"
    r"(?:\..{0,80}estimated maximum model length is (?P<estimate>\d+))?"
)


class OutOfMemory(Value):
    """What an allocation asked for, and what the device had."""

    device: int
    tried_bytes: int
    total_bytes: int
    free_bytes: int


class FreeBelowBudget(Value):
    """What was free at start, and what the configured share would have needed."""

    device: int | None
    free_bytes: int
    total_bytes: int
    wanted_bytes: int
    gpu_memory_utilization: float


class KvCacheTooSmall(Value):
    """What one request of the configured length needs, and what was left for it."""

    max_model_len: int
    needed_bytes: int
    available_bytes: int
    estimated_max_model_len: int | None


class EngineFigures(Value):
    """What one start printed; None where a figure was not printed (yet)."""

    version: str | None = None
    arguments: Mapping[str, object] = {}  # the engine's own "non-default args"
    weights_bytes: int | None = None  # per GPU
    available_kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    cuda_graphs_bytes: int | None = None
    dummy_requests: int | None = None  # of the sampler's warm-up, when it failed
    out_of_memory: OutOfMemory | None = None
    free_below_budget: FreeBelowBudget | None = None
    kv_cache_too_small: KvCacheTooSmall | None = None


_TELLS = re.compile(
    "version|LLM engine|non-default args|oading model weights took|Model loading took|KV cache|Maximum concurrency"
    "|Graph capturing finished|dummy requests|out of memory|Free memory on device"
)


def may_tell_figures(message: str) -> bool:
    """Whether a message may hold one of the figures: cheap, for those who keep messages until figures are asked for.

    >>> may_tell_figures("Model loading took 57.5 GiB"), may_tell_figures("Application startup complete.")
    (True, False)
    """
    return _TELLS.search(message) is not None


def read_figures(messages: Iterable[str]) -> EngineFigures:
    """Gathers the figures of one invocation; of several ranks the first printed one counts, the smallest for KV.

    >>> read_figures(["INFO 05-28 20:22:02 [core.py:1] Available KV cache memory: 5.00 GiB"]).available_kv_cache_bytes
    5368709120
    """
    found: dict[str, object] = {}
    for message in messages:
        for name, value in _figures_of(parse_log_line(message).text):
            smaller = name == "available_kv_cache_bytes" and name in found and value < found[name]  # type: ignore[operator]
            if smaller or name not in found:
                found[name] = value
    return EngineFigures.model_validate(found)


def _figures_of(text: str) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    if match := _VERSION.search(text):
        found.append(("version", match["version"] or match["other"]))
    if "non-default args" in text and (match := _ARGUMENTS.search(text)):
        found.append(("arguments", _arguments(match["arguments"])))
    for name, pattern in (
        ("weights_bytes", _WEIGHTS),
        ("available_kv_cache_bytes", _AVAILABLE_KV),
        ("cuda_graphs_bytes", _GRAPHS),
    ):
        if match := pattern.search(text):
            found.append((name, size_bytes(match["size"] or match["cpu"], match["size_unit"] or "GiB")))
    if match := _KV_TOKENS.search(text):
        found.append(("kv_cache_tokens", int(match["tokens"].replace(",", ""))))
    if match := _CONCURRENCY.search(text):
        found.append(("max_concurrency", float(match["times"])))
    return [*found, *_failure_figures(text)]


def _failure_figures(text: str) -> list[tuple[str, object]]:
    if match := _DUMMY.search(text):
        return [("dummy_requests", int(match["n"]))]
    if match := _OOM.search(text):
        sizes = {f"{name}_bytes": size_bytes(match[name], match[f"{name}_unit"]) for name in ("tried", "total", "free")}
        return [("out_of_memory", OutOfMemory(device=int(match["device"]), **sizes))]
    if match := _FREE_BELOW.search(text):
        return [("free_below_budget", _free_below_budget(match))]
    if match := _KV_NEEDED.search(text):
        return [("kv_cache_too_small", _kv_cache_too_small(match))]
    return []


def _free_below_budget(match: re.Match[str]) -> FreeBelowBudget:
    return FreeBelowBudget(
        device=int(match["device"]) if match["device"] else None,
        free_bytes=size_bytes(match["free"], "GiB"),
        total_bytes=size_bytes(match["total"], "GiB"),
        wanted_bytes=size_bytes(match["wanted"], "GiB"),
        gpu_memory_utilization=float(match["share"]),
    )


def _kv_cache_too_small(match: re.Match[str]) -> KvCacheTooSmall:
    return KvCacheTooSmall(
        max_model_len=int(match["max_model_len"]),
        needed_bytes=size_bytes(match["needed"], "GiB"),
        available_bytes=size_bytes(match["available"], "GiB"),
        estimated_max_model_len=int(match["estimate"]) if match["estimate"] else None,
    )


def _arguments(text: str) -> Mapping[str, object]:
    """The printed dictionary; values that are no literals make it unreadable, and then it counts as not printed."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(name): item for name, item in value.items()} if isinstance(value, dict) else {}
