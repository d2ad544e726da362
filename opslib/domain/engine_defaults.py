"""What vLLM takes where a flag is not given, by version and GPU.

Sources: vllm/config/cache.py; vllm/engine/arg_utils.py `get_batch_defaults` (0.8.5 to 0.33).
"""

import re
from typing import NamedTuple

from pydantic import JsonValue

GIB = 2**30
NEWEST = (0, 33, 0)
_LARGE_GPU_BYTES = 70 * GIB
_HUGE_GPU_BYTES = 160 * GIB
_NUMBER = re.compile(r"(\d+)\.(\d+)(x?)(?:\.(\d+))?")

Default = tuple[JsonValue, str]
Triple = tuple[int, int, int]


class EngineVersion(NamedTuple):
    """A version, or the family of versions that a loose one means; `is_v0` for the old engine."""

    low: Triple
    expected: Triple
    high: Triple
    is_v0: bool = False

    @property
    def is_loose(self) -> bool:
        """Whether several minor versions are meant."""
        return self.low[:2] != self.high[:2]


def read_engine_version(text: str, environment_v1: str = "") -> EngineVersion:
    """What a version text means: "0.11.x" and "0.10" a family, "0.1x" ten of them, "0.15/0.16" both, "" the newest.

    >>> read_engine_version("0.1x").low, read_engine_version("0.15/0.16 (Feb)").high, read_engine_version("").expected
    ((0, 10, 0), (0, 16, 99), (0, 33, 0))
    """
    found = [_triples(match) for match in _NUMBER.finditer(text.partition("(")[0] or text)][:2]
    found = found or [_triples(match) for match in _NUMBER.finditer(text)][:1]
    if not found:
        return EngineVersion(NEWEST, NEWEST, NEWEST)
    low, high = min(low for low, _, _ in found), max(high for _, _, high in found)
    expected = found[0][1]
    said_v0, said_v1 = "V0" in text or environment_v1 == "0", "V1" in text or environment_v1 == "1"
    first_v1 = (0, 6, 4) if said_v1 else (0, 8, 0)  # before it was the default it could be asked for
    return EngineVersion(low, expected, high, is_v0=expected < first_v1 or (said_v0 and expected < (0, 11, 0)))


def _triples(match: re.Match[str]) -> tuple[Triple, Triple, Triple]:
    major, minor = int(match[1]), int(match[2])
    if match[3] and match[4] is None:  # "0.1x": 0.10 to 0.19
        return (major, 10 * minor, 0), (major, 10 * minor + 5, 0), (major, 10 * minor + 9, 99)
    patch = match[4]
    low = (major, minor, int(patch or 0))
    return low, low, (major, minor, int(patch) if patch else 99)


def parse_engine_version(text: str) -> Triple:
    """A vLLM version as three numbers; "0.11.x" or "0.15" is its family's first, "" the newest known.

    >>> parse_engine_version("v0.15.1+cu128"), parse_engine_version("0.11.x")
    ((0, 15, 1), (0, 11, 0))
    """
    return read_engine_version(text).expected


def version_words(engine_version: str) -> str:
    """How a default's origin names the version: "vLLM 0.15".

    >>> version_words("0.15.1"), version_words("")
    ('vLLM 0.15', 'vLLM (version not known)')
    """
    if not re.search(r"\d+\.\d+", engine_version):
        return "vLLM (version not known)"
    version = read_engine_version(engine_version)
    if version.is_loose:
        return f"vLLM 0.{version.low[1]} to 0.{version.high[1]}"
    return f"vLLM {version.expected[0]}.{version.expected[1]}"


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


def _batch_row(version: Triple, total_bytes: int, name: str) -> tuple[int, int, str]:
    if version < (0, 8, 0):
        return 256, 2048, "every GPU"
    if version < (0, 8, 5):
        return 1024, 2048, "every GPU"
    if total_bytes >= _HUGE_GPU_BYTES and version >= (0, 30, 0):  # in 0.33, not yet in 0.27.0
        return 1024, 16384, "GPUs >= 160 GiB"
    is_exempt = ("a100" in name.lower() and version >= (0, 9, 0)) or ("gb10" in name.lower() and version >= (0, 33, 0))
    if total_bytes >= _LARGE_GPU_BYTES and not is_exempt:
        return 1024, 8192, "GPUs >= 70 GiB"
    return 256, 2048, "GPUs < 70 GiB" if total_bytes < _LARGE_GPU_BYTES else f"{name}"
