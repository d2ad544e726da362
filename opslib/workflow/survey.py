"""Look over a host in one round trip; two where sudo is refused."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from opslib.domain.host import CommandResult, Host
from opslib.domain.states import State, Value, worst
from opslib.domain.survey import EngineUnit, HostSurvey, unreached
from opslib.domain.survey_checks import judge_survey
from opslib.domain.survey_reading import parse_survey, survey_program
from opslib.errors import BadParameter, OpslibError, PrivilegeRefused, Refused, UnexpectedAnswer
from opslib.workflow.benchmark import TokenCheck, one_token

TIMEOUT_S = 30.0


def utc_now() -> datetime:
    """The time of this machine, aware UTC."""
    return datetime.now(UTC)


def survey_host(host: Host, units: Sequence[str] = (), *, clock: Callable[[], datetime] = utc_now) -> HostSurvey:
    """What one look over `host` comes to; a host that can't be asked is a survey that says why, never an error.

    Without `units` every service that runs an inference engine is looked at.
    """
    alias, began_at = host.settings.alias, clock()
    try:
        return ask_survey(host, units, clock=clock)
    except OpslibError as error:
        duration_s = round((clock() - began_at).total_seconds(), 3)
        is_refused = isinstance(error, Refused)
        return unreached(
            alias, error.message, error.hint, surveyed_at=clock(), duration_s=duration_s, is_refused=is_refused
        )


def ask_survey(
    host: Host,
    units: Sequence[str] = (),
    *,
    is_units_only: bool = False,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], datetime] = utc_now,
) -> HostSurvey:
    """The same, but raises what keeps the host from being asked (HostUnreachable, HostKeyRefused, ...)."""
    name, arguments = survey_program(host.settings, units, is_units_only=is_units_only)
    is_without_sudo = False
    try:
        result = host.run_program(
            name, arguments, sudo=host.settings.sudo is True, timeout_s=timeout_s
        )  # no sudoers list names a program
    except PrivilegeRefused as refused:
        if not refused.message.startswith("sudo"):  # the login itself
            raise
        is_without_sudo = True
        result = host.run_program(name, arguments, timeout_s=timeout_s)
    received_at = clock()
    return judge_survey(
        parse_survey(_answer(host, result)),
        host=host.settings.alias,
        received_at=received_at,
        duration_s=result.duration_s,
        is_rehearsal=host.settings.is_rehearsal,
        is_without_sudo=is_without_sudo,
    )


class UnitCheck(Value):
    """Whether a unit serves: what systemd and `/health` say, and one real token where they give hope."""

    unit: EngineUnit
    token: TokenCheck | None = None

    @property
    def state(self) -> State:
        """The worse of both."""
        return worst([self.unit.state, *([self.token.state] if self.token else [])])


def check_unit(host: Host, unit: str, *, port: int | None = None, deadline_s: float = 10.0) -> UnitCheck:
    """Whether `unit` really generates: at `port`, else at the one that its command line names.

    Raises what keeps the host from being asked, and BadParameter where no port is known.
    """
    survey = ask_survey(host, (unit,), is_units_only=True)
    if not survey.units:
        raise UnexpectedAnswer(survey.checks[0].summary, host=host.settings.alias)
    found = survey.units[0]
    asked_port = port or found.port
    if not found.status.is_running or (port is None and found.port is not None and found.health_status_code != 200):
        return UnitCheck(unit=found)
    if asked_port is None:
        raise BadParameter(f"{found.unit} is no engine that is known here: its port is not", hint="give --port")
    return UnitCheck(unit=found, token=one_token(host, asked_port, deadline_s=deadline_s))


def _answer(host: Host, result: CommandResult) -> str:
    if not result.is_success:
        message = f"the survey ended with status {result.exit_status}: {result.error_text[-300:]}"
        raise UnexpectedAnswer(message, host=host.settings.alias)
    return result.text
