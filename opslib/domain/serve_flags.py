"""What a `vllm serve` command line means: effective values, where they come from, and what was wrong with it."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from opslib.domain.states import CheckResult, Value

_NEVER_OVERLAPPED = {"ngram", "medusa", "mlp_speculator", "suffix"}  # config/vllm.py: async scheduling is off with them


class FlagValue(Value):
    """A flag's effective value and where it comes from: "unit", or "default of vLLM …"."""

    value: JsonValue
    origin: str


class ServeFlags(Value):
    """What a `vllm serve` command line means: the model, every given flag, defaults, and what is wrong with it."""

    model: str | None = None
    flags: Mapping[str, FlagValue] = {}
    findings: tuple[CheckResult, ...] = ()
    environment: Mapping[str, str] = {}  # environment variables of the engine that decide memory (VLLM_…)

    def value(self, name: str) -> Any:
        """The effective value of a flag ("--max-num-seqs"), None where neither given nor defaulted."""
        flag = self.flags.get(name)
        return None if flag is None else flag.value

    def _count(self, name: str, otherwise: int) -> int:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

    def environment_value(self, name: str) -> str:
        """An environment variable's value, "" where it isn't set."""
        return self.environment.get(name, "")

    @property
    def tensor_parallel_size(self) -> int:
        return self._count("--tensor-parallel-size", 1)

    @property
    def pipeline_parallel_size(self) -> int:
        return self._count("--pipeline-parallel-size", 1)

    @property
    def data_parallel_size(self) -> int:
        return self._count("--data-parallel-size", 1)

    @property
    def decode_context_parallel_size(self) -> int:
        return self._count("--decode-context-parallel-size", 1)

    @property
    def n_gpus(self) -> int:
        """Ranks of the whole engine, each on a GPU of its own."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def has_expert_parallel(self) -> bool:
        return bool(self.value("--enable-expert-parallel"))

    @property
    def max_num_seqs(self) -> int:
        return self._count("--max-num-seqs", 256)

    @property
    def max_num_batched_tokens(self) -> int:
        return self._count("--max-num-batched-tokens", 2048)

    @property
    def max_model_len(self) -> int | None:
        """None means: as the model's config says."""
        value = self.value("--max-model-len")
        return value if isinstance(value, int) and value > 0 else None

    @property
    def gpu_memory_utilization(self) -> float:
        return float(self.value("--gpu-memory-utilization") or 0.9)

    @property
    def kv_cache_memory_bytes(self) -> int | None:
        """The cache's size where it is given: then the profile and the utilization don't decide it."""
        value = self.value("--kv-cache-memory-bytes")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def is_eager(self) -> bool:
        """Whether no CUDA graphs are captured: by the flag, by -O0, or by the compilation's own mode."""
        levels = (self.value("--compilation-config"), self.value("--optimization-level"))
        is_off = self.graph_mode == "NONE" or self.compilation.get("use_cudagraph") is False
        return bool(self.value("--enforce-eager")) or is_off or any(str(level) in {"0", "O0"} for level in levels)

    @property
    def compilation(self) -> Mapping[str, Any]:
        """--compilation-config where it is an object, else empty."""
        given = self.value("--compilation-config")
        return given if isinstance(given, Mapping) else {}

    @property
    def graph_mode(self) -> str:
        """The compilation's cudagraph_mode in capitals, "" where it isn't given."""
        return str(self.compilation.get("cudagraph_mode") or "").upper()

    @property
    def captures_decoding(self) -> bool:
        """Whether whole decoding steps are captured as CUDA graphs, not only the parts between attention."""
        return not self.is_eager and self.graph_mode != "PIECEWISE"

    @property
    def has_async_scheduling(self) -> bool:
        """Whether the next batch is scheduled while one runs: the default, but for drafts without a model."""
        asked = self.value("--async-scheduling")
        return bool(asked) if asked is not None else self._speculative[0] not in _NEVER_OVERLAPPED

    @property
    def has_lora(self) -> bool:
        return bool(self.value("--enable-lora"))

    @property
    def _speculative(self) -> tuple[str, int, str]:
        """Method, number of tokens and draft model of --speculative-config; a sentence about it is read as well."""
        given = self.value("--speculative-config")
        if isinstance(given, Mapping):
            tokens = given.get("num_speculative_tokens", 1)
            model = str(given.get("model") or "")
            return str(given.get("method") or "draft_model"), tokens if isinstance(tokens, int) else 1, model
        if not given or not isinstance(given, str):
            return "", 0, ""
        number = re.search(r"(\d+)\s*(?:speculative )?tokens", given)
        return given.split(",")[0].strip().lower(), int(number[1]) if number else 1, ""

    @property
    def n_draft_tokens(self) -> int:
        """Tokens that are guessed ahead of each step; 0 without speculation."""
        return self._speculative[1]

    @property
    def has_own_draft_model(self) -> bool:
        """Whether the draft comes from a checkpoint of its own (EAGLE, a small model), not from MTP layers."""
        method, tokens, model = self._speculative
        return bool(tokens) and ("mtp" not in method or bool(model)) and method != "ngram"

    def with_value(self, name: str, value: JsonValue, origin: str) -> "ServeFlags":
        """The same command line with one flag set otherwise."""
        return self.model_copy(update={"flags": {**self.flags, name: FlagValue(value=value, origin=origin)}})
