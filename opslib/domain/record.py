"""What `record.json` says about a run: who, where, with what, section by section, and how it ended."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from opslib import __version__
from opslib.domain.actions import Action
from opslib.domain.host import HostSettings
from opslib.domain.parameter_parts import RunParameters
from opslib.domain.states import Outcome, State, Value
from opslib.domain.survey import Clock

SCHEMA_VERSION = 1
_YEARS = range(1970, 9000)  # room to add or take a clock's difference


def _moment(at: datetime) -> datetime:
    """A time with its zone, UTC where none was written; what no clock shows is refused."""
    if at.year not in _YEARS:
        raise ValueError(f"the year {at.year} is no year of a run")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


Moment = Annotated[datetime, AfterValidator(_moment)]


class SectionRecord(Value):
    """One section of a runbook: the question's name, its state, one sentence, and one JSON value."""

    name: str
    state: State
    summary: str = ""
    value: Any = None
    started_at: Moment
    duration_s: float = Field(0.0, ge=0)


class RunRecord(Value):
    """The facts of one run; rewritten after each section."""

    schema_version: int = SCHEMA_VERSION
    runbook: str
    parameters: dict[str, Any]
    host: str = ""
    unit: str = ""
    ticket: str = ""  # the incident or change that the run belongs to, under the name it has elsewhere
    answered: Mapping[str, Any] = {}  # who answered: hostname, boot_id, user
    clock: Clock | None = None  # the host's clock against the controller's, when it answered
    started_at: Moment
    ended_at: Moment | None = None
    user: str = ""
    controller: str = ""  # the machine that the run was started on
    process_id: int | None = None
    parent_process_id: int | None = None  # headless: the process that runs the kernel
    opslib_version: str = __version__
    versions: Mapping[str, str] = {}  # of what the run used on the controller: Python, papermill, the system
    actions: tuple[Action, ...] = ()  # who ran, was refused and unfroze what, in order
    sections: tuple[SectionRecord, ...] = ()
    invocation_ids: tuple[str, ...] = ()  # every start of a unit that the sections speak of
    outcome: Outcome | None = None
    cause: str | None = None  # the failure catalogue's id of what stopped the run, or of what was cured
    status: Literal["running", "finished", "interrupted"] = "running"
    is_dry_run: bool = False  # every read, no change
    left: str = ""  # what a run that was interrupted did about the changes it had begun
    notes: tuple[str, ...] = ()  # what befell the run itself: asked again, a lock taken over, who was told
    exit_code: int | None = None  # the outcome's own, or 4 for a refusal; None while it runs

    @property
    def is_ended(self) -> bool:
        """Whether the run came to an end, good or bad."""
        return self.status != "running"

    @property
    def shown_exit_code(self) -> int:
        """The exit code of the run: its own, else its outcome's, else 3 (could not find out)."""
        if self.exit_code is not None:
            return self.exit_code
        return self.outcome.state.exit_code if self.outcome else State.UNKNOWN.exit_code

    def with_action(self, action: Action) -> "RunRecord":
        """The record with one more action at its end."""
        return self.model_copy(update={"actions": (*self.actions, action)})

    def with_section(self, section: SectionRecord) -> "RunRecord":
        """The record with one more section; one of the same name (a cell run again) is replaced at its place."""
        names = [known.name for known in self.sections]
        sections = list(self.sections)
        if section.name in names:
            sections[names.index(section.name)] = section
        else:
            sections.append(section)
        starts = dict.fromkeys((*self.invocation_ids, *_invocations(section.value)))
        return self.model_copy(update={"sections": tuple(sections), "invocation_ids": tuple(starts)})

    def finished(self, outcome: Outcome, ended_at: datetime, *, exit_code: int | None = None) -> "RunRecord":
        """The record of a run that came to an outcome; its exit code is the outcome's own unless one is given."""
        return self._ended("finished", outcome, ended_at, outcome.state.exit_code if exit_code is None else exit_code)

    def interrupted(self, reason: str, ended_at: datetime | None) -> "RunRecord":
        """The record of a run that was ended from outside; its outcome stays unknown."""
        outcome = Outcome(state=State.UNKNOWN, reason=reason)
        return self._ended("interrupted", outcome, ended_at, outcome.state.exit_code)

    def _ended(self, status: str, outcome: Outcome, ended_at: datetime | None, exit_code: int) -> "RunRecord":
        ended = {"status": status, "outcome": outcome, "ended_at": ended_at, "exit_code": exit_code}
        return self.model_copy(update=ended)


def _invocations(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name == "invocation_id" and isinstance(item, str) and item:
                yield item
            else:
                yield from _invocations(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _invocations(item)


def new_record(
    runbook: str, parameters: RunParameters, settings: HostSettings | None = None, *, started_at: datetime
) -> RunRecord:
    """The record of a run that starts now; the record folder adds who runs it, where and in which process."""
    return RunRecord(
        runbook=runbook,
        parameters=parameters.model_dump(),
        host=settings.alias if settings else parameters.recorded_host,
        unit=parameters.recorded_unit,
        ticket=parameters.recorded_ticket,
        started_at=started_at,
    )
