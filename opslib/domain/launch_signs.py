"""What a journal line, or systemd's answer, means for a launch: deaths, exits, restarts, stops, dropped entries."""

import re

from opslib.domain.engine_log import LogLine
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import Value

# journald's own note that it dropped entries by its rate limit (systemd.journal-fields(7), SD_MESSAGE_JOURNAL_DROPPED)
DROPPED_ID = "a596d6fe7bfa4994828e72309e95d61e"
_DROPPED = re.compile(r"Suppressed (?P<n>\d+) messages from (?P<unit>\S+)")
_DEATHS = re.compile(
    r"WorkerProc hit an exception|WorkerProc failed to start|EngineCore failed to start"
    r"|Engine core initialization failed"
    r"|EngineCore (?:hit an exception|encountered a fatal error)|Engine process failed to start|died unexpectedly"
)
# systemd's own lines, the first that matches decides: what it means, and the pattern. Source: systemd 252, service.c
# and job.c.
_BY_SYSTEMD = (
    ("start_limit", re.compile(r"[Ss]tart request repeated too quickly")),
    ("stopping", re.compile(r"^Stopping |stop-sigterm")),
    (
        "exited",
        re.compile(
            r"(?:[Mm]ain|Control) process exited, code=(?P<code>\w+),? status=(?P<status>\d+)(?:/(?P<word>\w+))?"
        ),
    ),
    ("ended", re.compile(r"Failed with result '(?P<result>[\w-]+)'")),
    ("ended", re.compile(r"Scheduled restart job, restart counter is at (?P<n>\d+)")),
    ("started", re.compile(r"^Start(?:ed|ing) ")),
)
_ALIVE = frozenset({"active", "activating", "deactivating", "reloading"})
# Said once a minute by processes that wait for others: no news.
_WAITING = re.compile(r"No available shared memory broadcast block found")


class Sign(Value):
    """What one line or answer means; `exit_status` as systemd writes it, `n` entries that were dropped."""

    # of a line: dropped, start_limit, stopping, exited, ended, started, death, waiting, systemd, line; of an answer:
    # gone, orphaned, n_restarts, invocation_id, sub_state, failed, result, inactive, runs
    kind: str
    text: str
    exit_status: str = ""
    n: int = 0


def sign_of(entry: JournalEntry, line: LogLine) -> Sign:
    """What this entry means; a line that nobody knows is just a "line".

    >>> from opslib.domain.engine_log import parse_log_line
    >>> text = "vllm.service: Main process exited, code=killed, status=9/KILL"
    >>> sign_of(JournalEntry(message=text, identifier="systemd"), parse_log_line(text)).exit_status
    'killed, status=9/KILL'
    """
    if entry.message_id == DROPPED_ID or entry.identifier == "systemd-journald":
        match = _DROPPED.search(entry.message)
        return Sign(kind="dropped", text=entry.message, n=int(match["n"]) if match else 0)
    if entry.identifier == "systemd":
        for kind, pattern in _BY_SYSTEMD:
            if match := pattern.search(entry.message):
                return Sign(kind=kind, text=entry.message, exit_status=_exit_words(match) if kind == "exited" else "")
        return Sign(kind="systemd", text=entry.message)
    if _WAITING.search(line.text):
        return Sign(kind="waiting", text=line.text)
    return Sign(kind="death" if _DEATHS.search(line.text) else "line", text=line.text)


def _exit_words(match: re.Match[str]) -> str:
    return f"{match['code']}, status={match['status']}" + (f"/{match['word']}" if match["word"] else "")


def unit_sign(unit: UnitStatus, *, known: str, n_restarts: int | None, is_stop_asked: bool) -> Sign:
    """What systemd's answer means for the start `known` ("" before one was seen), `n_restarts` seen before it."""
    is_other = bool(known and unit.invocation_id and unit.invocation_id != known)
    is_going_down = unit.active_state == "deactivating" and unit.result not in {"", "success"}
    more = n_restarts is not None and unit.n_restarts > n_restarts
    table = (
        (
            "gone",
            not unit.is_installed and unit.active_state not in _ALIVE,
            f"systemd knows no unit {unit.unit}".rstrip(),
        ),
        ("orphaned", not unit.is_installed, "the unit's file is gone; its process still runs"),
        ("n_restarts", more, f"NRestarts went from {n_restarts} to {unit.n_restarts}"),
        ("invocation_id", is_other, f"InvocationID changed from {known} to {unit.invocation_id}"),
        ("sub_state", unit.sub_state.startswith("auto-restart"), f"systemd waits to restart it (result {unit.result})"),
        ("failed", unit.active_state == "failed", failure_words(unit)),
        ("result", is_going_down and not is_stop_asked, f"the unit is going down (result {unit.result})"),
        (
            "inactive",
            unit.active_state == "inactive" and bool(known),
            f"the unit is inactive: {'it was stopped on request' if is_stop_asked else unit.exit_words or 'it ended'}",
        ),
    )
    return next((Sign(kind=kind, text=text) for kind, holds, text in table if holds), Sign(kind="runs", text=""))


def failure_words(unit: UnitStatus) -> str:
    """How a failed unit came to that, in systemd's words."""
    return f"the unit failed (result {unit.result}" + (f", {unit.exit_words})" if unit.exit_words else ")")
