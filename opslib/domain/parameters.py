"""One schema per runbook: for the notebook's parameters cell, the command line and YAML files alike."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from opslib.domain.problems import (
    ALIAS,
    CAUSE,
    INVOCATION,
    LINE,
    MAYBE_ALIAS,
    MAYBE_LINE,
    MAYBE_MOMENT,
    MAYBE_TICKET,
    MAYBE_UNIT,
    UNIT,
    VARIABLE,
    VERSION,
    WAVE,
    nearest,
    problems_of,
)
from opslib.domain.redaction import redact, says_secret
from opslib.errors import BadParameter, UnknownName

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=LINE)]
Alias = Annotated[str, Field(pattern=ALIAS)]
UnitName = Annotated[str, Field(pattern=UNIT)]
GpuIndex = Annotated[int, Field(ge=0, le=63)]
Concurrency = Annotated[int, Field(ge=1, le=1024)]
RequestRate = Annotated[float, Field(gt=0, le=10_000)]
VariableName = Annotated[str, Field(pattern=VARIABLE)]
VariableValue = Annotated[str, Field(max_length=4096, pattern=MAYBE_LINE)]
Ticket = Annotated[str, Field(pattern=MAYBE_TICKET)]

ALL_HOSTS = "all"  # among the hosts of a survey: every one of hosts.toml

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

    @staticmethod
    def names(runbook: str) -> tuple[str, ...]:
        """The names of a runbook's parameters, in the schema's order."""
        return tuple(schema_of(runbook).model_fields)

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


class SurveyHostsParameters(RunParameters):
    """Parameters of `00-survey-hosts`."""

    hosts: list[Alias] = Field(
        ["rehearsal"], min_length=1, max_length=256, description='aliases of hosts.toml; ["all"]: every one of them'
    )
    ticket: Ticket = Field("", description='ticket that the run belongs to, as INC-4711; "": none')

    @property
    def aliases(self) -> tuple[str, ...]:
        """The hosts, each once, in the order given; `all` stands as it was given."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def recorded_host(self) -> str:
        """The one host's name; a number of hosts; all of them."""
        return "all-hosts" if ALL_HOSTS in self.hosts else super().recorded_host


class VerifyDownloadParameters(LevelParameters, ModelParameters, Parameters):
    """Parameters of `10-verify-download`."""


class PlanMemoryParameters(EngineParameters, ModelParameters, Parameters):
    """Parameters of `20-plan-memory`."""


class UnitLaunchParameters(LaunchParameters, Parameters):
    """Parameters of `30-launch`."""


class InvestigateCrashParameters(Parameters):
    """Parameters of `40-investigate-crash`."""

    invocation: Annotated[str, Field(pattern=INVOCATION)] = Field(
        "-1", description='which start: "-1" the one before, "" or "0" the current one, or an invocation id'
    )


class UnitBenchmarkParameters(BenchmarkParameters, ServedParameters, Parameters):
    """Parameters of `50-benchmark`: by default of a rehearsal host whose engine serves."""

    host: Alias = Field("rehearsal:healthy", description="alias of the host in hosts.toml")
    second_client: Literal["none", "vllm", "guidellm"] = Field(
        "none", description="another client of the host, measured beside ours"
    )


class DeployParameters(BenchmarkParameters, LaunchParameters, LevelParameters, Parameters):
    """Parameters of `90-deploy`."""

    roll_back_on: list[Literal["corrupt", "worse"]] = Field(
        [], description="what undoes the deploy without a click: a corrupt canary, figures that are worse"
    )


class FleetParameters(RunParameters):
    """Parameters of `70-fleet`: what is rolled out over which hosts, and how carefully."""

    hosts: list[Text] = Field(
        ["rehearsal"], min_length=1, max_length=256, description='aliases, labels, all; ["rehearsal"]: 3 practice hosts'
    )
    runbook: Text = Field("10-verify-download", description="what is run on each host, by name or number")
    runbook_parameters: dict[Text, Any] = Field({}, description="what that runbook is given, besides its host")
    canary: int = Field(1, ge=0, le=256, description="hosts that go first, alone, and have to pass")
    wave: Annotated[str, Field(pattern=WAVE)] = Field(
        "50%", description="hosts at a time after them: a number, or a share of all"
    )
    max_failures: int = Field(0, ge=0, le=256, description="failed hosts after which it still goes on")
    pause_s: int | None = Field(
        None, ge=0, le=86_400, description="seconds between two waves; None: 300, on practice hosts none"
    )
    min_serving: int = Field(0, ge=0, le=256, description="units that must serve whatever is taken down")
    resume: Annotated[str, Field(max_length=4096, pattern=MAYBE_LINE)] = Field(
        "", description='rollout to go on with, by the name of its record; "": a new one'
    )
    consent: Literal["ask", "given"] = Field("ask", description="given: every host's plan is applied without a click")
    ticket: Ticket = Field("", description='ticket that the run belongs to, as INC-4711; "": none')

    @property
    def recorded_host(self) -> str:
        """The record is about all of them."""
        return "fleet"

    @model_validator(mode="after")
    def _runbook_takes_them(self) -> Self:
        """The hosts' runbook and what it is given are as they have to be, before any host is contacted."""
        named = [name for name in RUNBOOKS if self.runbook in (name, *name.split("-", 1))]
        if not named:
            raise ValueError(f"runbook: unknown runbook {self.runbook!r}{nearest(self.runbook, list(RUNBOOKS))}")
        try:
            validate_parameters(named[0], self.runbook_parameters)
        except BadParameter as error:
            raise ValueError(f"runbook_parameters: {'; '.join(error.message.splitlines())}") from None
        return self


class ReviewRunsParameters(RunParameters):
    """Parameters of `60-review-runs`: which records are listed."""

    host: Annotated[str, Field(pattern=MAYBE_ALIAS)] = Field("", description='alias of the runs\' host; "": any')
    unit: Annotated[str, Field(pattern=MAYBE_UNIT)] = Field("", description='unit of the runs; "": any')
    runbook: Annotated[str, Field(max_length=64, pattern=MAYBE_LINE)] = Field(
        "", description='runbook by name or number; "": any'
    )
    state: Literal["any", "ok", "warning", "critical", "unknown", "running", "interrupted"] = Field(
        "any", description="how the runs ended"
    )
    model: Annotated[str, Field(max_length=4096, pattern=MAYBE_LINE)] = Field(
        "", description='model that the runs were about; "": any'
    )
    ticket: Ticket = Field("", description='ticket of the runs, whose time line and post-mortem are shown; "": any')
    cause: Annotated[str, Field(max_length=64, pattern=MAYBE_LINE)] = Field(
        "", description='cause that the runs found, or its family, as gpu-memory; "": any'
    )
    since: Annotated[str, Field(pattern=MAYBE_MOMENT)] = Field(
        "", description='first moment in UTC, as 2026-11-29, 2026-11-29T18:00, or 7d, 12h ago; "": any'
    )
    until: Annotated[str, Field(pattern=MAYBE_MOMENT)] = Field(
        "", description='last moment, in the same words; "": now'
    )
    limit: int = Field(20, ge=1, le=10_000, description="most records to list, newest first")

    @property
    def recorded_host(self) -> str:
        """The records lie on the machine that asks."""
        return "this-machine"

    @property
    def recorded_unit(self) -> str:
        """The unit asked for, if one was."""
        return self.unit or "all-units"


RUNBOOKS: Mapping[str, type[RunParameters]] = {
    "00-survey-hosts": SurveyHostsParameters,
    "10-verify-download": VerifyDownloadParameters,
    "20-plan-memory": PlanMemoryParameters,
    "30-launch": UnitLaunchParameters,
    "40-investigate-crash": InvestigateCrashParameters,
    "50-benchmark": UnitBenchmarkParameters,
    "60-review-runs": ReviewRunsParameters,
    "70-fleet": FleetParameters,
    "90-deploy": DeployParameters,
}


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


def schema_of(runbook: str) -> type[RunParameters]:
    """The parameter schema of a runbook; raises UnknownName with the nearest name."""
    if runbook not in RUNBOOKS:
        raise UnknownName(f"unknown runbook {runbook!r}{nearest(runbook, list(RUNBOOKS))}")
    return RUNBOOKS[runbook]


def defaults_of(runbook: str) -> dict[str, Any]:
    """Names and default values of a runbook's parameters, in the schema's order."""
    return schema_of(runbook)().model_dump()


def takes_text(runbook: str, name: str) -> bool:
    """Whether a parameter is a text: what is typed after `-p name=` is then taken as it stands.

    >>> takes_text("90-deploy", "engine_version"), takes_text("90-deploy", "port")
    (True, False)
    """
    schema = schema_of(runbook).model_json_schema()["properties"].get(name, {})
    return "string" in (schema.get("type"), *(part.get("type") for part in schema.get("anyOf", ())))


def validate_parameters(runbook: str, given: Mapping[str, Any], *, also: Sequence[str] = ()) -> RunParameters:
    """What a runbook will run with: `given` over the defaults. `also`: names that may have been meant, not given here.

    Raises BadParameter with one line per problem; nothing is contacted to find out.

    >>> validate_parameters("90-deploy", {"prot": 8001})
    Traceback (most recent call last):
    opslib.errors.BadParameter: prot: unknown parameter of 90-deploy; did you mean port?
    """
    schema = schema_of(runbook)
    try:
        return schema.model_validate(dict(given))
    except ValidationError as error:
        lines = dict.fromkeys(problems_of(error, runbook, [*schema.model_fields, *also]))
    raise BadParameter("\n".join(lines))
