"""Schedules as systemd timers of this machine, or of this login: shown, installed, listed, removed."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from opslib.domain.schedule import PREFIX, STOP_S, Schedule, read_schedule, render_service, render_timer
from opslib.domain.states import Value
from opslib.domain.unit_file import unified_diff
from opslib.errors import CouldNotFindOut, Refused
from opslib.records.folder import atomic_write

_SHOWN = ("ActiveState", "Result", "ExecMainStatus", "ExecMainStartTimestamp")


class Scheduled(Value):
    """One schedule as it stands: when it runs next, and how its last run ended."""

    schedule: Schedule
    next_at: str = ""
    last_at: str = ""
    state: str = ""  # of the service: inactive, activating while it runs, failed
    result: str = ""
    exit_status: str = ""


def has_systemd() -> bool:
    """Whether this machine was booted with systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def default_scope() -> str:
    """The machine's systemd for root, else the login's own."""
    return "system" if os.geteuid() == 0 else "user"


def unit_dir(scope: str) -> Path:
    """Where the units of a scope lie."""
    if scope == "system":
        return Path("/etc/systemd/system")
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


def planned_files(schedule: Schedule) -> dict[Path, str]:
    """The units of a schedule, by the path that they get."""
    folder = unit_dir(schedule.scope)
    return {folder / schedule.service: render_service(schedule), folder / schedule.timer: render_timer(schedule)}


def diff_of(files: Mapping[Path, str]) -> str:
    """What installing these files would change."""
    old = {path: path.read_text("utf-8") if path.is_file() else None for path in files}
    return "\n".join(unified_diff(old[path], text, str(path)) for path, text in files.items() if old[path] != text)


def install(schedule: Schedule) -> Scheduled:
    """Write the units, start the timer, and ask systemd what it made of it; raises Refused with its words.

    Nothing is written where that systemd doesn't answer.
    """
    _require_manager(schedule.scope)
    for path, text in planned_files(schedule).items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, text.encode())
        except OSError as error:
            hint = "sudo, or --user" if schedule.scope == "system" else ""
            raise Refused(f"{path} could not be written: {error.strerror}", hint=hint) from error
    _systemctl(schedule.scope, "daemon-reload")
    _systemctl(schedule.scope, "enable", schedule.timer)
    _systemctl(schedule.scope, "restart", schedule.timer)
    found = _asked(schedule)
    if not found.next_at:
        raise CouldNotFindOut(f"{schedule.timer} is installed, but systemd names no next time", hint="systemctl status")
    return found


def list_timers(scopes: Sequence[str] = ("system", "user")) -> list[Scheduled]:
    """All schedules of this machine's systemd, and of this login's, by name."""
    paths = [path for scope in scopes for path in sorted(unit_dir(scope).glob(f"{PREFIX}*.timer"))]
    found = [read_schedule(path.read_text("utf-8", "replace")) for path in paths]
    return [_asked(schedule) for schedule in found if schedule is not None]


def remove(schedule: Schedule) -> list[Path]:
    """Stop the timer and take its units away; a run that is going on is not ended. Returns the files that are gone."""
    _systemctl(schedule.scope, "disable", "--now", schedule.timer)
    gone = [path for path in planned_files(schedule) if path.is_file()]
    for path in gone:
        path.unlink()
    _systemctl(schedule.scope, "daemon-reload")
    return gone


def _asked(schedule: Schedule) -> Scheduled:
    """What systemd says about a schedule's timer and service."""
    if not has_systemd():
        return Scheduled(schedule=schedule)
    timer = _properties(schedule.scope, schedule.timer, ("NextElapseUSecRealtime",))
    service = _properties(schedule.scope, schedule.service, _SHOWN)
    last_at = service.get("ExecMainStartTimestamp", "")
    return Scheduled(
        schedule=schedule,
        next_at=timer.get("NextElapseUSecRealtime", ""),
        last_at=last_at,
        state=service.get("ActiveState", ""),
        result=service.get("Result", "") if last_at else "",
        exit_status=service.get("ExecMainStatus", "") if last_at else "",
    )


def _properties(scope: str, unit: str, names: Sequence[str]) -> dict[str, str]:
    asked = call([*_manager(scope), "show", f"--property={','.join(names)}", "--", unit])
    return dict(line.split("=", 1) for line in asked.stdout.splitlines() if "=" in line)


def _require_manager(scope: str) -> None:
    """Refuses where the systemd of the scope can't be asked: a login without a session has none of its own."""
    done = call([*_manager(scope), "show", "--property=Version"])
    if done.returncode:
        hint = "loginctl enable-linger, then a new login; or --system" if scope == "user" else "leave --system out"
        raise Refused(f"{' '.join(_manager(scope))} doesn't answer: {_said(done)}; nothing was written", hint=hint)


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _systemctl(scope: str, *words: str) -> None:
    done = call([*_manager(scope), *words])
    if done.returncode:
        said = _said(done)
        raise Refused(f"systemctl {' '.join(words)}: {said}", hint="" if scope == "user" else "sudo, or --user")


def _manager(scope: str) -> list[str]:
    return ["systemctl", "--user"] if scope == "user" else ["systemctl"]


def call(argv: Sequence[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine: words in English, times in UTC; raises CouldNotFindOut where it can't answer."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        return subprocess.run(
            list(argv), input=given or "", check=False, capture_output=True, text=True, timeout=STOP_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CouldNotFindOut(f"{argv[0]} gave no answer: {error}") from error
