"""What an engine's unit comes to: the honest word for "active (running)"."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from opslib.domain.facts.ports import Listener
from opslib.domain.facts.systemd import UnitStatus, parse_unit_show
from opslib.domain.states import State, Value
from opslib.domain.survey import EngineUnit, age_words
from opslib.domain.survey_reading import HealthReading, ProcessReading, UnitReading

START_S = 900.0  # as long as a launch may take: until then a closed /health is no verdict
RECENT_S = 600.0  # a restart within this time is told even where the engine answers again
LOOP_RESTARTS = 3  # from here on restarts are a loop


class Verdict(Value):
    """A state, the words after the unit's name, and what to do."""

    state: State
    words: str
    next_step: str = ""


def judge_unit(
    reading: UnitReading,
    *,
    host: str,
    now: datetime,
    listeners: Sequence[Listener] = (),
    processes: Mapping[int, ProcessReading] | None = None,
) -> EngineUnit:
    """What a unit comes to at `now` (the host's own clock), given who listens on its port."""
    status = parse_unit_show(reading.show)
    running_s = _seconds(status.exec_main_start_at, now) if status.is_running else None
    verdict = _verdict(reading, status, running_s, now)
    verdict = _with_port(verdict, reading, status, listeners, processes or {})
    ports = _own_ports(status, listeners, processes or {})
    if verdict.state is not State.OK and ports and reading.port is not None and reading.port not in ports:
        words = f"{verdict.words}; it listens on {', '.join(map(str, ports))}, not on {reading.port}"
        verdict = verdict.model_copy(update={"words": words})
    if status.need_daemon_reload and verdict.state is State.OK:
        words = f"{verdict.words}; its unit file changed on disk since"
        verdict = Verdict(state=State.WARNING, words=words, next_step="systemctl daemon-reload, then restart it")
    unit = (status.unit or reading.id).removesuffix(".service")
    return EngineUnit(
        unit=unit,
        state=verdict.state,
        summary=f"{unit} {verdict.words}",
        next_step=verdict.next_step.format(host=host, unit=unit),
        status=status,
        engine=reading.engine,
        model=reading.model,
        port=reading.port,
        listening_ports=ports,
        health_status_code=reading.health.status_code if reading.health else None,
        engine_version=reading.version.version if reading.version else "",
        running_s=running_s,
    )


_INVESTIGATE = "opslib run investigate-crash -p host={host} -p unit={unit}"


def _verdict(reading: UnitReading, status: UnitStatus, running_s: float | None, now: datetime) -> Verdict:
    if status.load_state not in {"loaded", "masked"}:
        return _not_loaded(status)
    match status.active_state:
        case "active" | "reloading":
            return _active(reading, status, running_s)
        case "activating":
            return _activating(status, now)
        case "failed":
            return _failed(reading, status, now)
        case "deactivating":
            return Verdict(state=State.WARNING, words=f"is stopping ({status.sub_state})")
    return _inactive(status, now)


def _not_loaded(status: UnitStatus) -> Verdict:
    if not status.is_installed:
        step = "opslib run launch -p host={host} -p unit={unit}"
        return Verdict(state=State.CRITICAL, words="is not known to systemd", next_step=step)
    words = f"can't be loaded ({status.load_state})"
    return Verdict(state=State.CRITICAL, words=words, next_step="systemd-analyze verify {unit}.service")


def _active(reading: UnitReading, status: UnitStatus, running_s: float | None) -> Verdict:
    if running_s is None:
        return Verdict(state=State.CRITICAL, words="is active without a main process", next_step=_INVESTIGATE)
    is_ready = reading.health is not None and reading.health.status_code == 200
    age = age_words(running_s)
    if status.n_restarts:
        return _restarted(status.n_restarts, age, running_s, "" if is_ready else _health_words(reading.health))
    if is_ready:
        return Verdict(state=State.OK, words=f"ready for {age}")
    health = _health_words(reading.health)
    if running_s < START_S:
        return Verdict(state=State.WARNING, words=f"starting for {age}, {health}", next_step="ask again in a minute")
    step = "journalctl -u {unit} -n 50"
    return Verdict(state=State.CRITICAL, words=f'"active" for {age}, but {health}', next_step=step)


def _restarted(n_restarts: int, age: str, running_s: float, trouble: str) -> Verdict:
    """A unit that systemd had to start again; `trouble` says that it does not answer."""
    times = _times(n_restarts)
    if not trouble and running_s >= RECENT_S:
        return Verdict(state=State.OK, words=f"ready for {age}, {times} before")
    if not trouble:
        words = f"ready, but restarted {age} ago ({times})"
        return Verdict(state=State.WARNING, words=words, next_step=_INVESTIGATE)
    what = "crash-looping:" if n_restarts >= LOOP_RESTARTS else "crashed and"
    words = f"{what} restarted {age} ago ({times}), {trouble}"
    return Verdict(state=State.CRITICAL, words=words, next_step=_INVESTIGATE)


def _health_words(health: HealthReading | None) -> str:
    if health is None:
        return "/health not asked"
    if health.status_code is not None:
        return f"/health says {health.status_code}"
    return {"closed": "/health closed", "silent": "/health does not answer"}.get(
        health.problem, f"/health: {health.problem}"
    )


def _activating(status: UnitStatus, now: datetime) -> Verdict:
    if status.sub_state.startswith("auto-restart"):
        loop = "crash-looping" if status.n_restarts >= LOOP_RESTARTS else "crashed, about to be restarted"
        ended = _seconds(status.exec_main_exit_at, now)
        ago = f" {age_words(ended)} ago" if ended is not None else ""
        before = f", {_times(status.n_restarts)} before" if status.n_restarts else ""
        words = f"{loop}: {status.exit_words or status.result}{ago}{before}"
        return Verdict(state=State.CRITICAL, words=words, next_step=_INVESTIGATE)
    waits = "waits in ExecStartPre (for GPU memory to be released?)"
    words = waits if status.sub_state == "start-pre" else f"is activating ({status.sub_state})"
    if status.n_restarts:
        words = f"crashed, its restart {status.n_restarts} {words}"
        return Verdict(state=State.CRITICAL, words=words, next_step=_INVESTIGATE)
    step = "journalctl -u {unit} -n 20" if status.sub_state == "start-pre" else "ask again in a minute"
    return Verdict(state=State.WARNING, words=words, next_step=step)


def _failed(reading: UnitReading, status: UnitStatus, now: datetime) -> Verdict:
    ended = _seconds(status.exec_main_exit_at, now)
    ago = f" {age_words(ended)} ago" if ended is not None else ""
    how = status.exit_words or status.result
    if status.result == "start-limit-hit" or is_start_limit_hit(reading.show, status):
        words = f"failed, start limit hit after {_times(status.n_restarts)}: {how}{ago}"
        return Verdict(state=State.CRITICAL, words=words, next_step=_INVESTIGATE)
    result = f" ({status.result})" if status.result not in {"", "exit-code", "signal", how} else ""
    return Verdict(state=State.CRITICAL, words=f"failed{ago}: {how}{result}", next_step=_INVESTIGATE)


def is_start_limit_hit(show: str, status: UnitStatus) -> bool:
    """Whether systemd gave up on restarting the unit.

    `Result` keeps the word of the last crash then (systemd core/service.c, service_enter_dead: the first result stays),
    so the restarts are counted against StartLimitBurst.
    """
    properties = dict(line.split("=", 1) for line in show.splitlines() if "=" in line)
    burst = properties.get("StartLimitBurst", "")
    has_restart = properties.get("Restart", "no") != "no"
    return (
        status.active_state == "failed" and has_restart and burst.isdigit() and status.n_restarts >= int(burst) - 1 > 0
    )


def _inactive(status: UnitStatus, now: datetime) -> Verdict:
    ended = _seconds(status.exec_main_exit_at, now)
    if ended is None:
        words = "is stopped, though enabled" if status.unit_file_state == "enabled" else "is stopped"
        state = State.WARNING if status.unit_file_state == "enabled" else State.OK
        return Verdict(state=state, words=words)
    if status.exec_main_code == 1 and status.exec_main_status == 0:
        words = (
            f"stopped {age_words(ended)} ago by itself or by hand: exited with status 0, which systemd calls a success"
        )
        return Verdict(state=State.WARNING, words=words, next_step=_INVESTIGATE)
    state = State.WARNING if status.unit_file_state == "enabled" else State.OK
    return Verdict(state=state, words=f"stopped {age_words(ended)} ago ({status.exit_words})")


def _with_port(
    verdict: Verdict,
    reading: UnitReading,
    status: UnitStatus,
    listeners: Sequence[Listener],
    processes: Mapping[int, ProcessReading],
) -> Verdict:
    """Whoever else listens on the unit's port answers in its name, or keeps it from starting."""
    if status.active_state == "inactive" or reading.port is None:
        return verdict
    for listener in listeners:
        process = processes.get(listener.pid or 0)
        if listener.port != reading.port or process is None or process.is_gone or process.unit in {status.unit, ""}:
            continue
        who = f"{process.name} (pid {process.pid}, {process.user}, {process.unit})"
        words = f"{verdict.words}; port {listener.port} belongs to {who}"
        return Verdict(
            state=State.CRITICAL, words=words, next_step=f"stop {process.unit}, or give the engine another port"
        )
    return verdict


def _own_ports(
    status: UnitStatus, listeners: Sequence[Listener], processes: Mapping[int, ProcessReading]
) -> tuple[int, ...]:
    """The ports that the unit's own processes listen on."""
    pids = {process.pid for process in processes.values() if process.unit == status.unit}
    return tuple(sorted({listener.port for listener in listeners if listener.pid in pids}))


def _times(n_restarts: int) -> str:
    return f"{n_restarts} restart{'' if n_restarts == 1 else 's'}"


def _seconds(at: datetime | None, now: datetime) -> float | None:
    return (now - at).total_seconds() if at is not None else None
