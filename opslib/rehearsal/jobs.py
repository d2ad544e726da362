"""Jobs: queued wishes for a unit, and what the journal says as one begins and ends (systemd 252, job.c)."""

import asyncio
from dataclasses import dataclass, field

from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.unit_config import UnitConfig
from opslib.rehearsal.unit_journal import manager_line

_DONE_LINES = {  # (job type, result) -> (kind of journal line, wording)
    ("start", "done"): ("started", "Started {}."),
    ("start", "failed"): ("start-failed", "Failed to start {}."),
    ("stop", "done"): ("stopped", "Stopped {}."),
    ("restart", "done"): ("stopped", "Stopped {}."),
}
_BEGIN_LINES = {"start": ("starting", "Starting {}..."), "stop": ("stopping", "Stopping {}...")}


class UnitRefused(Exception):  # noqa: N818 - systemd refuses; nothing failed here
    """No job was queued; `reason` is systemd's, text and exit status are systemctl's."""

    def __init__(self, text: str, exit_status: int, reason: str = "") -> None:
        super().__init__(text)
        self.exit_status = exit_status
        self.reason = reason


@dataclass
class Job:
    """A queued wish for a unit: start, stop or restart, and how it ended ("" while it runs)."""

    number: int
    type: str
    is_running: bool = False
    result: str = ""
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def shown_type(self) -> str:
        """The type that "Stopping ..." carries: a restart begins as a stop."""
        return "stop" if self.type == "restart" else self.type


@dataclass(frozen=True)
class JobLines:
    """What the journal says about jobs of a unit, under the unit's present start."""

    journal: JournalStore
    config: UnitConfig
    invocation_id: str

    def begin(self, job: Job, begun_as: str) -> None:
        """A job that began as one of that type: its "Starting ..." or "Stopping ...", where systemd says so."""
        if begun_as in _BEGIN_LINES:
            self._write(job, _BEGIN_LINES[begun_as], begun_as)

    def end(self, job: Job, result: str) -> None:
        """How the job ended, where systemd says so."""
        if (job.type, result) not in _DONE_LINES:
            return
        kind, wording = _DONE_LINES[job.type, result]
        if job.type == "start" and self.config.type == "oneshot" and result == "done":
            wording = "Finished {}."
        self._write(job, (kind, wording), job.type, JOB_RESULT=result)

    def _write(self, job: Job, line: tuple[str, str], job_type: str, **fields: str) -> None:
        config, (kind, wording) = self.config, line
        shown = config.name if config.description == config.name else f"{config.name} - {config.description}"
        manager_line(
            self.journal,
            kind,
            wording.format(shown),
            unit=config.name,
            invocation_id=self.invocation_id,
            JOB_ID=str(job.number),
            JOB_TYPE=job_type,
            **fields,
        )
