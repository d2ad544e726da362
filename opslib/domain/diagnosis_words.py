"""The figures of a failed start in one sentence, for the verdict's summary."""

from opslib.domain.engine_figures import EngineFigures

_GIB = 2**30


def figures_in_words(cause: str, figures: EngineFigures) -> str:
    """What the engine printed that bears on a memory cause, "" for others.

    >>> from opslib.domain.engine_figures import read_figures
    >>> figures_in_words("gpu-memory/no-kv-cache-memory", read_figures(["Available KV cache memory: -2.50 GiB"]))
    'Left for the KV cache: -2.50 GiB.'
    """
    if not cause.startswith("gpu-memory/"):
        return ""
    said = [_out_of_memory(figures), _free_below(figures), _kv_cache(figures)]
    if figures.dummy_requests:
        said.insert(0, f"Sampler warm-up with {figures.dummy_requests} dummy requests.")
    if figures.weights_bytes:
        said.append(f"Weights per GPU: {_gib(figures.weights_bytes)}.")
    return " ".join(words for words in said if words)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"


def _out_of_memory(figures: EngineFigures) -> str:
    oom = figures.out_of_memory
    if oom is None:
        return ""
    return f"GPU {oom.device}: {_gib(oom.tried_bytes)} asked, {_gib(oom.free_bytes)} free of {_gib(oom.total_bytes)}."


def _free_below(figures: EngineFigures) -> str:
    free = figures.free_below_budget
    if free is None:
        return ""
    share = f"gpu_memory_utilization {free.gpu_memory_utilization}"
    return f"{_gib(free.free_bytes)} free of {_gib(free.total_bytes)}, {_gib(free.wanted_bytes)} wanted ({share})."


def _kv_cache(figures: EngineFigures) -> str:
    small, left = figures.kv_cache_too_small, figures.available_kv_cache_bytes
    if small:
        estimate = small.estimated_max_model_len
        fits = f" A max_model_len of {estimate} fits, by the engine's estimate." if estimate else ""
        needed, available = _gib(small.needed_bytes), _gib(small.available_bytes)
        return f"One request of {small.max_model_len} tokens needs {needed} of KV cache and {available} are left.{fits}"
    return f"Left for the KV cache: {_gib(left)}." if left is not None else ""
