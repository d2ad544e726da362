"""How a headless run ended: its own outcome, or why it has none and what it left on the host."""

from datetime import UTC, datetime

import opslib.errors
from opslib.app.binding import is_rehearsal_alias
from opslib.app.kernel import KernelControl
from opslib.domain.record import RunRecord
from opslib.domain.redaction import redact
from opslib.domain.rollout import UNDER_WAY
from opslib.domain.states import Outcome, State
from opslib.errors import OpslibError
from opslib.records.folder import RunFolder

_CHANGING = ("install", "replace", "launch", "remedy", "relaunch")  # sections that change the host
_PREPARING = ("prepare-crash", "prepare-service")  # sections that change a practice host


def closed_record(folder: RunFolder, error: BaseException | None, control: KernelControl) -> RunRecord:
    """The record's last state: its own outcome, or why it has none."""
    record = folder.read_record()
    assert record is not None  # written before the kernel was started
    now = datetime.now(UTC)
    if record.outcome is not None:
        return record
    during = running_section(folder)
    where, last = whereabouts(record, during), _last_section(record)
    if control.stopped_by:
        return record.interrupted(f"interrupted by {control.stopped_by} {where}; {left_on_host(record, during)}", now)
    name, sentence = _one_line(error, folder.secrets)
    refused = getattr(opslib.errors, name, OpslibError)
    code = refused.exit_code if isinstance(refused, type) and issubclass(refused, OpslibError) else None
    reason = f"the runbook ended after {last}: {sentence}" if error else f"the runbook ended after {last}, undecided"
    outcome = Outcome(state=State.UNKNOWN, reason=reason)
    if name == "DeadKernelError":
        return record.interrupted(f"{interrupted_at(now, where)}: the kernel died; {left_on_host(record, during)}", now)
    return record.finished(outcome, now, exit_code=code)


def interrupted_at(at: datetime, where: str) -> str:
    """How the sentence about a run that was killed begins."""
    return f"interrupted at {at:%Y-%m-%d %H:%M:%S} UTC {where}"


def whereabouts(record: RunRecord, during: str) -> str:
    """Where an interrupted run was: in a section, at work on hosts (a rollout), or behind its last section."""
    turns = [entry.name for entry in record.sections if isinstance(entry.value, dict) and _is_under_way(entry.value)]
    if turns:
        return f"while at work {' and '.join(turns)}"
    return f"during {during}" if during else f"after {_last_section(record)}"


def _is_under_way(value: dict[str, object]) -> bool:
    return value.get("step") in UNDER_WAY


def _last_section(record: RunRecord) -> str:
    return record.sections[-1].name.removeprefix("on ") if record.sections else "the beginning"


def running_section(folder: RunFolder) -> str:
    """The section that had begun and not ended; "" where none had."""
    begun = ""
    for event in folder.events():
        if event.get("kind") == "section-started":
            begun = str(event.get("section", ""))
        elif event.get("kind") == "section-ended" and event.get("section") == begun:
            begun = ""
    return begun


def left_on_host(record: RunRecord, during: str) -> str:
    """What an interrupted run leaves on the host, and how it is undone."""
    if record.left:
        return record.left
    begun = [during, *(section.name for section in record.sections)]
    changing = _CHANGING + _PREPARING if is_rehearsal_alias(record.host) else _CHANGING
    if not any(name in begun for name in changing):
        return f"nothing was changed on {record.host}"
    if is_rehearsal_alias(record.host):
        return f"{record.host} is gone, and all that was changed on it: it was a practice host"
    undo = _undo(record)
    launched = {section.name: section.value for section in record.sections if section.name in ("launch", "relaunch")}
    if any(isinstance(value, dict) and value.get("state") == "ready" for value in launched.values()):
        return (
            f"{record.unit} answers, and stays as it was deployed; undo: {' && '.join(undo) or 'nothing was changed'}"
        )
    stop = f"sudo systemctl stop {record.unit}"
    if during == "install":
        return f"some steps of the plan may be done on {record.host}; undo: {' && '.join(undo) or 'see its diff'}"
    what = f"{record.unit} is installed and may be running: {stop}" if undo else f"{record.unit} may be running: {stop}"
    return f"{what}; undo: {' && '.join(undo)}" if undo else what


def _undo(record: RunRecord) -> list[str]:
    """The commands that undo what was applied, the last change first; those of the plan where none is told as done."""
    applied = [
        command
        for section in reversed(record.sections)
        if isinstance(section.value, dict) and section.name in {"install", "remedy"}
        for command in section.value.get("undo") or (section.value.get("applied") or {}).get("undo") or ()
    ]
    planned = [
        step["undo"]
        for section in record.sections
        if section.name == "plan-unit" and isinstance(section.value, dict)
        for step in reversed(section.value.get("steps") or [])
        if step.get("undo")
    ]
    is_known = any(section.name == "install" for section in record.sections)
    return applied if is_known else planned


def _one_line(error: BaseException | None, secrets: tuple[str, ...]) -> tuple[str, str]:
    """Name and sentence of an error; papermill wraps that of the cell."""
    if error is None:
        return "", ""
    name = getattr(error, "ename", type(error).__name__)
    lines = str(getattr(error, "evalue", error)).strip().splitlines() or [""]
    return name, redact(f"{name}: {lines[0]}", secrets)
