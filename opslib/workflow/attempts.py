"""A unit that systemd starts again and again: watch it to the end of it, and read what each start failed with."""

from collections.abc import Callable
from datetime import datetime, timedelta

from opslib.domain.diagnosis import Diagnosis, diagnose
from opslib.domain.facts.journal import journal_command
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.host import Host
from opslib.domain.journal_text import parse_input
from opslib.domain.states import Value
from opslib.workflow.facts import journal_sudo
from opslib.workflow.launch import Start, pause, show_unit, utc_now

_POLL_S = 0.5
_START_LIMIT = "Start request repeated too quickly"


class Attempts(Value):
    """All starts since one was asked for: the unit at the end of the look, and the verdict on each."""

    status: UnitStatus
    diagnosis: Diagnosis
    has_given_up: bool  # systemd reached the unit's start limit (systemd.unit(5), StartLimitBurst=)


def follow_attempts(
    host: Host,
    start: Start,
    *,
    patience_s: float = 4.0,
    limit_s: float = 30.0,
    clock: Callable[[], datetime] = utc_now,
) -> Attempts:
    """Waits while systemd goes on starting a crashed unit, then reads every start since `start`.

    Ends when the unit has failed for good, no new start came for `patience_s`, or after `limit_s`.
    """
    now = clock()
    limit, status, changed_at = now + timedelta(seconds=limit_s), show_unit(host, start.unit), now
    while status.active_state not in {"failed", "inactive"} and now < limit:
        pause(_POLL_S)
        now, before, status = clock(), status, show_unit(host, start.unit)
        if status.n_restarts != before.n_restarts:
            changed_at = now
        elif now - changed_at > timedelta(seconds=patience_s):
            break
    argv = journal_command(start.unit, after_cursor=start.cursor or None)
    text = host.run(argv, sudo=journal_sudo(host), timeout_s=120.0).text
    entries = parse_input(text, "journal") if text else ()
    # The unit's result stays that of its last start: only the journal tells of the limit.
    is_limit = any(_START_LIMIT in entry.message for entry in entries)
    return Attempts(
        status=status,
        diagnosis=diagnose(entries, status=status),
        has_given_up=is_limit and status.active_state == "failed",
    )
