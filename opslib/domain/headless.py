"""What a headless run is given besides its runbook's parameters: who is told, when it must end, what is only tried."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from opslib.domain.parameter_parts import RunParameters, is_reference
from opslib.domain.parameters import validate_parameters
from opslib.domain.problems import problems_of
from opslib.errors import BadParameter

NotifyOn = Literal["always", "change", "problem"]


class HeadlessOptions(BaseModel):
    """Options of `opslib run`; they may stand in a file of parameters as well."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    notify: tuple[str, ...] = Field((), description="who is told: env:NAME or file:PATH of an apprise URL")
    notify_on: NotifyOn = Field("problem", description="always, change (of state or cause), problem (all but ok)")
    timeout_s: int | None = Field(None, ge=1, le=604_800, description="seconds after which the run is ended in order")
    retries: int = Field(2, ge=0, le=20, description="how often a read is asked again of a host that can't be reached")
    dry_run: bool = Field(False, description="every read, no change: stops before consent")

    @field_validator("notify", mode="before")
    @classmethod
    def _are_references(cls, given: Any) -> Any:
        places = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(place, str) and is_reference(place) for place in places):
            # the address holds secrets and must not be repeated here
            raise ValueError("give env:NAME or file:PATH, never the address itself")
        return tuple(places)


def split_options(runbook: str, given: Mapping[str, Any]) -> tuple[HeadlessOptions, RunParameters]:
    """The options and the parameters of a headless run; raises BadParameter with one line per problem.

    >>> split_options("30-launch", {"timeout_s": 60, "port": 8001})[0].timeout_s
    60
    """
    names = list(HeadlessOptions.model_fields)
    own = {name: value for name, value in given.items() if name in names}
    lines: list[str] = []
    options = HeadlessOptions()
    try:
        options = HeadlessOptions.model_validate(own)
    except ValidationError as error:
        lines += problems_of(error, runbook, names)
    try:
        rest = {name: value for name, value in given.items() if name not in names}
        parameters = validate_parameters(runbook, rest, also=names)
    except BadParameter as error:
        lines += error.message.splitlines()
    if lines:
        raise BadParameter("\n".join(dict.fromkeys(lines)))
    return options, parameters
