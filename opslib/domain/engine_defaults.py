"""What vLLM takes where a flag is not given, by version and GPU.

Sources: vllm/config/cache.py; vllm/engine/arg_utils.py `get_batch_defaults` (0.8.5 to 0.33).
"""

import re

from pydantic import JsonValue

GIB = 2**30
NEWEST = (0, 33, 0)
_LARGE_GPU_BYTES = 70 * GIB
_HUGE_GPU_BYTES = 160 * GIB

Default = tuple[JsonValue, str]


def parse_engine_version(text: str) -> tuple[int, int, int]:
    """A vLLM version as three numbers; "0.11.x" or "0.15" is its family's first, "" the newest known.

    >>> parse_engine_version("v0.15.1+cu128"), parse_engine_version("0.11.x")
    ((0, 15, 1), (0, 11, 0))
    """
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else NEWEST


def version_words(engine_version: str) -> str:
    """How a default's origin names the version: "vLLM 0.15".

    >>> version_words("0.15.1"), version_words("")
    ('vLLM 0.15', 'vLLM (version not known)')
    """
    if not re.search(r"\d+\.\d+", engine_version):
        return "vLLM (version not known)"
    major, minor, _ = parse_engine_version(engine_version)
    return f"vLLM {major}.{minor}"


def default_gpu_memory_utilization(engine_version: str) -> dict[str, Default]:
    """The default of --gpu-memory-utilization: 0.92 from 0.20.0 on, 0.90 before."""
    value = 0.92 if parse_engine_version(engine_version) >= (0, 20, 0) else 0.9
    return {"--gpu-memory-utilization": (value, f"default of {version_words(engine_version)}")}


def batch_defaults(engine_version: str, gpu_total_bytes: int | None, gpu_name: str = "") -> dict[str, Default]:
    """The defaults of --max-num-seqs and --max-num-batched-tokens for the API server.

    Empty without a GPU size: they depend on it.
    """
    if gpu_total_bytes is None:
        return {}
    version = parse_engine_version(engine_version)
    words = version_words(engine_version)
    seqs, tokens, gpus = _batch_row(version, gpu_total_bytes, gpu_name)
    origin = f"default of {words} for {gpus}"
    return {"--max-num-seqs": (seqs, origin), "--max-num-batched-tokens": (tokens, origin)}


def _batch_row(version: tuple[int, int, int], total_bytes: int, name: str) -> tuple[int, int, str]:
    if version < (0, 8, 0):
        return 256, 2048, "every GPU"
    if version < (0, 8, 5):
        return 1024, 2048, "every GPU"
    if total_bytes >= _HUGE_GPU_BYTES and version >= (0, 33, 0):
        return 1024, 16384, "GPUs >= 160 GiB"
    is_exempt = ("a100" in name.lower() and version >= (0, 9, 0)) or ("gb10" in name.lower() and version >= (0, 33, 0))
    if total_bytes >= _LARGE_GPU_BYTES and not is_exempt:
        return 1024, 8192, "GPUs >= 70 GiB"
    return 256, 2048, "GPUs < 70 GiB" if total_bytes < _LARGE_GPU_BYTES else f"{name}"
