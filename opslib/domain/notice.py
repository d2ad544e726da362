"""What is told of a run that nobody watched: when, and in which words."""

import shlex
from collections.abc import Mapping
from typing import Any

from opslib.domain.headless import NotifyOn
from opslib.domain.record import RunRecord
from opslib.domain.states import State, Value

_KINDS = {State.OK: "success", State.WARNING: "warning"}


class Notice(Value):
    """One message: a title for a lock screen, a few lines below it, and apprise's kind."""

    title: str
    body: str
    kind: str = "failure"  # success, warning or failure


def is_due(notify_on: NotifyOn, record: RunRecord, before: RunRecord | None) -> bool:
    """Whether a run that has ended is told of; the first one of its kind counts as a change."""
    if notify_on == "always":
        return True
    if notify_on == "change":
        return before is None or _verdict(record) != _verdict(before)
    return record.outcome is None or record.outcome.state is not State.OK


def _verdict(record: RunRecord) -> tuple[object, ...]:
    """What has to differ for a change: the state, and where it isn't ok, the cause."""
    state = record.outcome.state if record.outcome else State.UNKNOWN
    return (state, record.status, record.cause if state is not State.OK else None)


def notice_of(record: RunRecord, place: str, before: RunRecord | None = None) -> Notice:
    """The message about a run that has ended: host, unit, outcome, cause, remedy, and where the record is."""
    state = record.outcome.state if record.outcome else State.UNKNOWN
    earlier = before.outcome.state.value if before and before.outcome else ""
    was = f" (was {earlier})" if earlier and earlier != state.value else ""
    lines = {
        "host": f"{record.host}, started on {record.controller or 'this machine'}",
        "unit": record.unit,
        "outcome": f"{state.value}{was}: {record.outcome.reason if record.outcome else 'none'}",
        "cause": record.cause or "",
        "remedy": _remedy(record) if state is not State.OK else "",
        "next": f"opslib investigate {shlex.quote(record.host)} {shlex.quote(record.unit)}" if record.cause else "",
        "record": place,
    }
    body = "\n".join(f"{name}: {text}" for name, text in lines.items() if text)
    title = f"{record.host}: {record.unit} {_word(record, state)} ({record.runbook})"
    return Notice(title=title, body=body, kind=_KINDS.get(state, "failure"))


def refusal_notice(runbook: str, given: Mapping[str, Any], sentence: str, controller: str) -> Notice:
    """The message about a run that did not begin: there is no record of it."""
    host, unit = (str(given.get(name) or "") for name in ("host", "unit"))
    lines = {
        "host": f"{host or 'none named'}, asked on {controller}",
        "unit": unit,
        "outcome": f"refused: {sentence}",
        "remedy": "nothing was contacted: mend what is named, then run it again",
        "record": "none",
    }
    body = "\n".join(f"{name}: {text}" for name, text in lines.items() if text)
    return Notice(title=f"{host or controller}: {runbook} was refused", body=body)


def killed_notice(schedule: str, host: str, unit: str, how: str, runs_dir: str) -> Notice:
    """The message about a scheduled run that was ended from outside and could not tell of it."""
    body = "\n".join(
        (
            f"host: {host}",
            f"unit: {unit}",
            f"outcome: unknown: the run was ended ({how}) and could not tell of itself",
            f"remedy: opslib runs says where it ended; see journalctl -u opslib-{schedule}.service",
            f"record: the newest in {runs_dir}",
        )
    )
    return Notice(title=f"{host}: {unit} unknown (schedule {schedule})", body=body)


def _word(record: RunRecord, state: State) -> str:
    if record.exit_code == 4:
        return "refused"
    return record.status if record.status == "interrupted" else state.value


def _remedy(record: RunRecord) -> str:
    """The first way out that the run has found."""
    for section in reversed(record.sections):
        value = section.value if isinstance(section.value, dict) else {}
        diagnosis = value.get("diagnosis")
        ways = diagnosis.get("remedies") if isinstance(diagnosis, dict) else None
        if ways:
            way = ways[0]
            command = way.get("command")
            return f"{way.get('text', '')}{f' ({command})' if command else ''}".strip()
    return ""
