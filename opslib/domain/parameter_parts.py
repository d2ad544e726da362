"""Parameters that several runbooks share: of host and unit, model, engine, launch, benchmark, and their options."""

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from opslib.domain.problems import (
    ALIAS,
    CAUSE,
    LINE,
    MAYBE_LINE,
    MAYBE_TICKET,
    UNIT,
    VARIABLE,
    VERSION,
)
from opslib.domain.redaction import redact, says_secret

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=LINE)]
Alias = Annotated[str, Field(pattern=ALIAS)]
UnitName = Annotated[str, Field(pattern=UNIT)]
GpuIndex = Annotated[int, Field(ge=0, le=63)]
Concurrency = Annotated[int, Field(ge=1, le=1024)]
RequestRate = Annotated[float, Field(gt=0, le=10_000)]
VariableName = Annotated[str, Field(pattern=VARIABLE)]
VariableValue = Annotated[str, Field(max_length=4096, pattern=MAYBE_LINE)]
Ticket = Annotated[str, Field(pattern=MAYBE_TICKET)]

ALL_HOSTS = "all"  # where hosts are named: every one of hosts.toml

# Flags that have a parameter of their own, so that `extra_args` can't say the opposite.
_OWN_FLAGS = {
    "--host": None,
    "--model": "model",
    "--port": "port",
    "--served-model-name": "served_model_name",
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
}


class RunParameters(BaseModel):
    """What the parameters of every runbook have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts that the run is about."""
        return ()

    @property
    def recorded_host(self) -> str:
        """The host's name in the record; a number of hosts where it is about several."""
        return self.aliases[0] if len(self.aliases) == 1 else f"{len(self.aliases)}-hosts"

    @property
    def recorded_unit(self) -> str:
        """The unit's name in the record."""
        return "all-units"

    @property
    def recorded_ticket(self) -> str:
        """The incident or change that the run belongs to; "" for none."""
        return str(getattr(self, "ticket", ""))

    @model_validator(mode="after")
    def _no_value_looks_like_a_secret(self) -> Self:
        """A token under a harmless name is a secret too; it must not be repeated here."""
        for name, value in self.model_dump().items():
            if any(redact(text) != text for text in _texts(value)):
                raise ValueError(f"{name}: holds what looks like a secret: give env:NAME or file:PATH, never the value")
        return self

    @property
    def references(self) -> tuple[str, ...]:
        """Where the secrets of this run lie: all values of the form `env:NAME` and `file:PATH`."""
        return tuple(value for value in _texts(self.model_dump()) if is_reference(value))


class Parameters(RunParameters):
    """What every runbook about one unit is given: the host and the unit."""

    host: Alias = Field("rehearsal", description="alias of the host in hosts.toml")
    unit: UnitName = Field("vllm-minimax", description="systemd unit; .service is optional")
    ticket: Ticket = Field("", description='ticket that the run belongs to, as INC-4711; "": none')

    @property
    def aliases(self) -> tuple[str, ...]:
        """The one host."""
        return (self.host,)

    @property
    def recorded_unit(self) -> str:
        """The unit's name in the record."""
        return self.unit


class ModelParameters(BaseModel):
    """Which checkpoint."""

    model: Text = Field("minimax-m2-230b-fp8", description="name under the host's models_dir, or an absolute path")


class ServedParameters(ModelParameters):
    """Under which name and where the checkpoint is served."""

    served_model_name: Text | None = Field(None, description="name that clients ask for; None: the model's last part")
    port: int = Field(8000, ge=1, le=65535, description="port of the engine on the host")

    @property
    def client_model_name(self) -> str:
        """The name that clients ask for: `served_model_name`, else the last part of `model`."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


class EngineParameters(BaseModel):
    """How the engine uses the GPUs."""

    gpus: list[GpuIndex] = Field([0, 1, 2, 3], description="GPU indices on the host; []: an engine on the CPU")
    tensor_parallel_size: int = Field(4, ge=1, le=64, description="GPUs that share one copy of the weights")
    gpu_memory_utilization: float = Field(0.95, gt=0, le=1, description="share of each GPU's memory for the engine")
    max_model_len: int = Field(131072, ge=1, le=100_000_000, description="longest prompt plus answer, in tokens")
    max_num_seqs: int | None = Field(None, ge=1, le=65536, description="most requests at once; None: engine's default")
    engine_version: Annotated[str, Field(pattern=VERSION)] = Field(
        "0.15", description="vLLM version to plan for (the running engine's journal overrules it)"
    )
    extra_args: list[VariableValue] = Field([], description="more arguments of `vllm serve`, one text per word")

    @field_validator("extra_args")
    @classmethod
    def _extra_args_are_extra(cls, words: list[str]) -> list[str]:
        for word, following in zip_longest(words, words[1:], fillvalue=""):
            flag, _, inline = word.partition("=")
            if flag in _OWN_FLAGS:
                own = _OWN_FLAGS[flag]
                raise ValueError(f"{flag} is set by the parameter {own}" if own else f"{flag} is set by the kit")
            value = inline or ("" if following.startswith("-") else following)
            if flag.startswith("--") and says_secret(flag) and value and not is_reference(value):
                raise ValueError(f"{flag} holds a secret: put it in `environment` as env:NAME or file:PATH instead")
        return words

    @model_validator(mode="after")
    def _gpus_fit_parallelism(self) -> Self:
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError(f"gpus: {self.gpus} names a GPU twice")
        if self.gpus and len(self.gpus) % self.tensor_parallel_size:
            n_gpus = len(self.gpus)
            raise ValueError(
                f"tensor_parallel_size: {self.tensor_parallel_size} does not divide the number of gpus ({n_gpus})"
            )
        return self


class LaunchParameters(EngineParameters, ServedParameters):
    """How a unit is installed, started and, where allowed, cured."""

    environment: dict[VariableName, VariableValue] = Field(
        {}, description="environment of the engine; secrets only as env:NAME or file:PATH"
    )
    consent: Literal["ask", "given"] = Field("ask", description="given: apply plans without a click")
    apply_remedies: list[Annotated[str, Field(pattern=CAUSE)]] = Field(
        ["gpu-memory/sampler-warmup"], description="causes whose remedy may be applied without a click"
    )
    max_restarts: int = Field(1, ge=0, le=5, description="most relaunches with a remedy")
    ready_timeout_s: int = Field(900, ge=1, le=86_400, description="seconds until the engine must answer /health")
    gpu_wait_s: int = Field(300, ge=0, le=86_400, description="seconds that the unit's guard waits for GPU memory")
    stall_s: int = Field(300, ge=1, le=86_400, description="seconds without news until a launch counts as stalled")
    notify_systemd: bool = Field(
        False, description="run the engine under a program that tells systemd its phases and its first answer"
    )
    replaces: UnitName | None = Field(
        None, description="unit that makes room: stopped before the start, brought back where that fails; None: none"
    )

    @field_validator("environment")
    @classmethod
    def _secrets_are_references(cls, environment: dict[str, str]) -> dict[str, str]:
        literal = [name for name, value in environment.items() if says_secret(name) and not is_reference(value)]
        if literal:  # the value itself must not be repeated here
            raise ValueError(f"{', '.join(literal)} holds a secret: give env:NAME or file:PATH, never the value itself")
        return environment


class BenchmarkParameters(BaseModel):
    """Which load the benchmark puts on the engine."""

    concurrency_levels: list[Concurrency] = Field(
        [1, 4, 16, 64], min_length=1, max_length=32, description="requests in flight, one level after the other"
    )
    max_concurrency: Concurrency | None = Field(
        None, description="double from 1 up to this until the service is full; None: the levels above"
    )
    request_rates: list[RequestRate] = Field(
        [], max_length=32, description="requests per second that wait for no answer (Poisson), after the levels"
    )
    requests_per_stream: int = Field(2, ge=1, le=1000, description="requests per level = this x concurrency")
    input_tokens: int = Field(256, ge=1, le=1_000_000, description="length of each prompt, in tokens")
    output_tokens: int = Field(32, ge=1, le=1_000_000, description="length of each answer, in tokens")
    benchmark_repeats: int = Field(3, ge=1, le=20, description="times that each level is run; a comparison needs 3")
    benchmark_deadline_s: int = Field(600, ge=1, le=86_400, description="seconds after which no request is started")
    slo_ttft_ms: float | None = Field(None, gt=0, description="most ms to the first token that users accept; None: any")
    slo_tpot_ms: float | None = Field(None, gt=0, description="most ms per later token that users accept; None: any")
    worse_threshold_percent: float = Field(
        10.0, gt=0, le=1000, description="change for the worse that counts, beside the last good run"
    )
    on_worse: Literal["warning", "critical"] = Field("warning", description="state of a run that is worse than that")


class LevelParameters(BaseModel):
    """How deep a checkpoint is verified."""

    level: Literal["extents", "sample", "full-scan", "digest"] = Field(
        "extents",
        description="extents (headers), sample (some bytes), full-scan (all bytes), digest (all against known SHA-256)",
    )


def is_reference(value: str) -> bool:
    """Whether `value` says where a secret lies (`env:NAME`, `file:PATH`, `keyring:SERVICE/NAME`), and holds none.

    >>> is_reference("env:HF_TOKEN"), is_reference("file:/etc/hf-token"), is_reference("s3cr3t")
    (True, True, False)
    """
    return (
        re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[/~][^\x00-\x1f]+|keyring:[^\x00-\x1f]+/[^\x00-\x1f]+", value)
        is not None
    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
