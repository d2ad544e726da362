"""One schema per runbook: for the notebook's parameters cell, the command line and YAML files alike."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from opslib.domain.parameter_parts import (
    ALL_HOSTS,
    Alias,
    BenchmarkParameters,
    EngineParameters,
    LaunchParameters,
    LevelParameters,
    ModelParameters,
    Parameters,
    RunParameters,
    ServedParameters,
    Text,
    Ticket,
)
from opslib.domain.problems import (
    INVOCATION,
    MAYBE_ALIAS,
    MAYBE_LINE,
    MAYBE_MOMENT,
    MAYBE_UNIT,
    WAVE,
    nearest,
    problems_of,
)
from opslib.errors import BadParameter, UnknownName


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
