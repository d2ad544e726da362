"""Who holds the lock of a unit, and the words for it."""

from typing import Any

from pydantic import AwareDatetime, ValidationError

from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import HostSettings
from opslib.domain.states import Value
from opslib.errors import LockHeld


class LockHolder(Value):
    """Who holds a lock: a login of a controller, its process, and the run that it is for."""

    user: str
    controller: str  # the machine that the run was started on
    process_id: int
    runbook: str  # or the verb of the command line
    record: str = ""  # folder of the run's record; "" for a command without one
    since: AwareDatetime

    @property
    def words(self) -> str:
        """Who it is, in one line.

        >>> LockHolder(user="ana", controller="desk", process_id=7, runbook="90-deploy",
        ...            since="2026-03-01T10:00:00Z").words
        'ana on desk (process 7) with 90-deploy since 2026-03-01 10:00:00 UTC'
        """
        since = self.since.strftime("%Y-%m-%d %H:%M:%S UTC")
        record = f", record {self.record}" if self.record else ""
        return f"{self.user} on {self.controller} (process {self.process_id}) with {self.runbook} since {since}{record}"


def lock_path(settings: HostSettings, unit: str) -> str:
    """Where the lock of a unit lies on a host."""
    return f"{locks_dir(settings)}/{unit_name(unit).removesuffix('.service')}.lock"


def locks_dir(settings: HostSettings) -> str:
    """Where a host's locks lie: whoever may log in may lock there, and nobody takes away what is another's."""
    return f"{settings.state_dir}/locks"


def lock_arguments(settings: HostSettings, unit: str, holder: LockHolder) -> dict[str, object]:
    """What the on-host program `lock` is told."""
    return {
        "path": lock_path(settings, unit),
        "directory_mode": 0o700 if settings.scope == "user" else 0o1777,
        "holder": holder.model_dump(mode="json"),
    }


def read_holder(told: Any) -> LockHolder | None:
    """The holder that a lock file names; None where it names none that can be read."""
    try:
        return LockHolder.model_validate(told)
    except ValidationError:
        return None


def lock_held(unit: str, holder: LockHolder | None, *, host: str, host_pid: int | None = None) -> LockHeld:
    """The refusal that names who is at work on the unit; `host_pid` is the process on the host that holds the lock."""
    who = holder.words if holder else "somebody who is not named"
    end = f"; where they are gone for good: sudo kill {host_pid} on {host}" if host_pid else ""
    return LockHeld(
        f"{unit} is locked: {who} is at work on it",
        host=host,
        hint=f"wait until they are done, or ask them{end}",
    )
