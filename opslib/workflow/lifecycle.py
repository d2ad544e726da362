"""Start, stop, restart and drain a unit; each proves its outcome by asking again."""

import json
import time
from collections.abc import Callable

from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.host import Host
from opslib.domain.lifecycle import LifecycleReport, Verb, plan_verb, report_of
from opslib.domain.plans import Plan
from opslib.domain.states import CheckResult, State
from opslib.domain.unit_files import UnitFiles
from opslib.errors import CouldNotFindOut, Refused
from opslib.workflow.answering import endpoint_of, prove_answering
from opslib.workflow.facts import gather_unit_status, unknown_unit
from opslib.workflow.release import gather_hold, wait_released
from opslib.workflow.survey import ask_survey
from opslib.workflow.unit_files import gather_unit_files

Told = Callable[[str], None]
_INTERVAL_S = 1.0
_STEADY_S = 3.0  # for a unit that is no engine: as long it has to stay up
_INACTIVE_S = 30.0  # a unit that ended at once is forgotten by systemd: nothing tells it from one that waits
_INACTIVE = (
    f"still inactive {_INACTIVE_S:.0f} s after systemd took the start: it ended at once, or it waits for another unit; "
    "next: opslib logs, systemctl list-jobs"
)
_STOP_TIMEOUT_S = 300.0


def plan(host: Host, unit: str, verb: Verb, *, drain_s: float = 0.0) -> Plan:
    """What a verb would do now; raises UnknownName where systemd knows no such unit."""
    status = gather_unit_status(host, unit)
    if not status.is_installed:
        raise unknown_unit(host, unit)
    return plan_verb(host.settings.alias, status, verb, drain_s=drain_s)


def start(host: Host, unit: str, *, ready_s: float = 900.0, tell: Told = print) -> LifecycleReport:
    """Start the unit, where it doesn't run, and wait until it answers; a start limit that was hit is cleared first."""
    return _bring_up(host, unit, "start", ready_s, tell)


def restart(host: Host, unit: str, *, ready_s: float = 900.0, tell: Told = print) -> LifecycleReport:
    """Restart the unit and wait until its new process answers with the unit's own flags."""
    return _bring_up(host, unit, "restart", ready_s, tell)


def stop(host: Host, unit: str, *, release_s: float = 60.0, tell: Told = print) -> LifecycleReport:
    """Stop the unit, and wait until its GPU memory is really released."""
    return _take_down(host, unit, "stop", (), release_s=release_s, tell=tell)


def drain(
    host: Host, unit: str, *, drain_s: float, is_forced: bool = False, release_s: float = 60.0, tell: Told = print
) -> LifecycleReport:
    """Wait until the unit works on no request, then stop it; after the deadline it is stopped only where `is_forced`.

    New requests are still accepted while it waits: vLLM has no such switch (docs/decisions/drain.md).
    """
    began_at = time.monotonic()
    check = _wait_idle(host, gather_unit_files(host, unit), drain_s, tell)
    if check.state is not State.OK and not is_forced:
        duration_s = round(time.monotonic() - began_at, 3)
        return report_of(host.settings.alias, unit, "drain", (check,), "", duration_s=duration_s)
    return _take_down(host, unit, "drain", (check,), release_s=release_s, tell=tell)


def carry_out(host: Host, planned: Plan, *, tell: Told) -> None:
    """Run the commands of a plan, one after the other; raises Refused with systemd's words."""
    for step in planned.steps:
        if step.command:
            tell(step.title)
            result = host.run(step.command, sudo=host.settings.has_sudo, timeout_s=_STOP_TIMEOUT_S)
            if not result.is_success:
                raise Refused(f"{step.title}: {result.error_text}", host=host.settings.alias)


def _bring_up(host: Host, unit: str, verb: Verb, ready_s: float, tell: Told) -> LifecycleReport:
    began_at = time.monotonic()
    files, before = gather_unit_files(host, unit), gather_unit_status(host, unit)
    planned = plan(host, unit, verb)
    carry_out(host, planned, tell=tell)
    is_new = any(step.command for step in planned.steps)
    checks = [_wait_ready(host, files, before if is_new else None, began_at + ready_s, tell)]
    if checks[0].state is State.OK:
        checks += prove_answering(host, files, before if is_new else None)
    duration_s = time.monotonic() - began_at
    good = f"{verb}: {checks[0].summary}, {len(checks) - 1} questions asked again" if is_new else "runs already"
    return report_of(host.settings.alias, unit, verb, tuple(checks), good, duration_s=round(duration_s, 3))


def _take_down(
    host: Host, unit: str, verb: Verb, checks: tuple[CheckResult, ...], *, release_s: float, tell: Told
) -> LifecycleReport:
    began_at = time.monotonic()
    hold = gather_hold(host, unit)
    carry_out(host, plan(host, unit, "stop"), tell=tell)
    status = gather_unit_status(host, unit)
    is_down = status.active_state in {"inactive", "failed"} and not status.main_pid
    words = f"{status.active_state} ({status.sub_state})"
    stopped = CheckResult(name="stopped", state=State.OK if is_down else State.CRITICAL, summary=f"it is {words}")
    tell("asking whether its GPU memory is released")
    released = wait_released(host, hold, deadline_s=release_s)
    duration_s = round(time.monotonic() - began_at, 3)
    good = f"{verb}: {words}; GPU memory: {released.summary}"
    return report_of(host.settings.alias, unit, verb, (*checks, stopped, released), good, duration_s=duration_s)


def _wait_ready(host: Host, files: UnitFiles, before: UnitStatus | None, end_at: float, tell: Told) -> CheckResult:
    """Asks each second how the unit is doing: until it answers, has crashed, or the time is up."""
    name, last, up_since, idle_since, first_id = "ready", "", 0.0, 0.0, ""
    while True:
        summary, verdict = _look(host, files)
        status, is_ready = verdict
        now = time.monotonic()
        if status.invocation_id and before and status.invocation_id != before.invocation_id:
            first_id = first_id or status.invocation_id
        is_ours = before is None or bool(first_id) or _has_come_and_gone(status, before)
        if is_ours and (why := _died(status, first_id)):
            return CheckResult(name=name, state=State.CRITICAL, summary=f"{why}; next: opslib investigate")
        up_since = (up_since or now) if status.is_running and is_ours else 0.0
        if is_ours and (is_ready or (is_ready is None and up_since and now - up_since >= _STEADY_S)):
            said = (
                "it answers" if is_ready else "it runs; it is no engine that is known here, so nothing else was asked"
            )
            return CheckResult(name=name, state=State.OK, summary=said)
        if now >= end_at:
            return CheckResult(name=name, state=State.CRITICAL, summary=f"not ready in time: {summary}")
        idle_since = (idle_since or now) if status.active_state == "inactive" else 0.0
        if idle_since and now - idle_since >= _INACTIVE_S:
            return CheckResult(name=name, state=State.UNKNOWN, summary=_INACTIVE)
        if summary != last:
            tell(summary)
            last = summary
        time.sleep(_INTERVAL_S)


def _look(host: Host, files: UnitFiles) -> tuple[str, tuple[UnitStatus, bool | None]]:
    """The unit in words, its state, and whether it answers (None for no engine); what can't be had is asked again."""
    trouble = ""
    try:
        survey = ask_survey(host, (files.unit,), is_units_only=True)
        if survey.units:
            seen = survey.units[0]
            is_engine = endpoint_of(files) is not None
            is_ready = seen.status.is_running and seen.health_status_code == 200 if is_engine else None
            words = f"{seen.status.active_state} ({seen.status.sub_state})"
            health = "" if not is_engine else f", /health {seen.health_status_code or 'closed'}"
            return f"{words}{health}", (seen.status, is_ready)
    except CouldNotFindOut as error:
        trouble = f": {error.message}"
    none = UnitStatus(unit=files.unit, load_state="", active_state="unknown", sub_state="unknown")
    return f"nothing could be learned{trouble}; asking again", (none, False)


def _has_come_and_gone(status: UnitStatus, before: UnitStatus) -> bool:
    """Whether a process was started since and is over: a dead unit has no invocation id that would tell."""
    return not status.main_pid and status.exec_main_start_at not in {None, before.exec_main_start_at}


def _died(status: UnitStatus, first_id: str) -> str:
    """Why this start is over: failed, ended, or another start has followed; "" while it goes on."""
    if status.active_state in {"failed", "inactive"}:
        return f"it is {status.active_state}: {status.exit_words or status.result}"
    if status.sub_state.startswith("auto-restart"):
        return f"it crashed ({status.exit_words or status.result}) and is about to be restarted"
    if first_id and status.invocation_id and status.invocation_id != first_id:
        return f"it crashed and was started again ({status.n_restarts} restarts)"
    return ""


def _wait_idle(host: Host, files: UnitFiles, deadline_s: float, tell: Told) -> CheckResult:
    endpoint, name = endpoint_of(files), "drained"
    if endpoint is None:
        return CheckResult(name=name, state=State.UNKNOWN, summary="it is no engine that is known here")
    has_tls = any(word.startswith("--ssl-certfile") for word in files.merged.engine_argv)
    arguments = {"port": endpoint.port, "address": endpoint.address, "tls": has_tls, "deadline_s": deadline_s}
    left, end = "", "unknown"
    with host.stream_program("in_flight", arguments) as stream:
        for line in stream:
            said = json.loads(line)
            end = said.get("end", end)
            if "running" in said:
                left = f"{said['running']} requests running, {said['waiting']} waiting"
                tell(left)
    return _drained(name, end, left, deadline_s)


def _drained(name: str, end: str, left: str, deadline_s: float) -> CheckResult:
    """What the end of the waiting means."""
    state, summary = {
        "idle": (State.OK, "no request was left"),
        "closed": (State.OK, "nobody listens, so no request is left"),
        "deadline": (State.WARNING, f"still {left} after {deadline_s:.0f} s; nothing was stopped unless forced"),
    }.get(end, (State.UNKNOWN, "/metrics doesn't say how many requests run"))
    return CheckResult(name=name, state=state, summary=summary)
