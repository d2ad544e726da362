"""Ask in one round trip whether a host is fit for a launch; two where sudo is refused."""

from collections.abc import Callable
from datetime import datetime

from opslib.domain.host import CommandResult, Host
from opslib.domain.preflight import PreflightReport, judge_preflight
from opslib.domain.preflight_look import look_at
from opslib.domain.preflight_reading import Wanted, parse_preflight, preflight_program
from opslib.errors import PrivilegeRefused, UnexpectedAnswer
from opslib.workflow.survey import utc_now

TIMEOUT_S = 45.0


def run_preflight(host: Host, wanted: Wanted, *, clock: Callable[[], datetime] = utc_now) -> PreflightReport:
    """What one look comes to; nothing is changed. Raises what keeps the host from being asked."""
    name, arguments = preflight_program(host.settings, wanted)
    try:
        result = host.run_program(name, arguments, sudo=host.settings.sudo is True, timeout_s=TIMEOUT_S)
    except PrivilegeRefused as refused:
        if not refused.message.startswith("sudo"):  # the login itself
            raise
        result = host.run_program(name, arguments, timeout_s=TIMEOUT_S)
    received_at = clock()
    reading = parse_preflight(_answer(host, result))
    settings = host.settings
    look = look_at(
        reading,
        wanted,
        host=settings.alias,
        received_at=received_at,
        duration_s=result.duration_s,
        is_rehearsal=settings.is_rehearsal,
        is_user_scope=settings.scope == "user",
    )
    return judge_preflight(look, asked_at=received_at, duration_s=result.duration_s)


def _answer(host: Host, result: CommandResult) -> str:
    if not result.is_success:
        message = f"the preflight ended with status {result.exit_status}: {result.error_text[-300:]}"
        raise UnexpectedAnswer(message, host=host.settings.alias)
    return result.text
