"""Schedules in this login's crontab, where there is no systemd."""

import shutil

from opslib.app.timers import Scheduled, call
from opslib.domain.schedule import Schedule, read_crontab, render_crontab, without_schedule
from opslib.errors import Refused
from opslib.records.lock import locks_dir


def crontab_text(schedule: Schedule) -> str:
    """The lines that would be added; raises BadParameter for a calendar that cron can't say."""
    return render_crontab(schedule, str(locks_dir() / f"schedule-{schedule.name}.lock"))


def install_line(schedule: Schedule) -> Scheduled:
    """Put the schedule's lines in place of those of the same name; raises Refused with crontab's words."""
    locks_dir().mkdir(parents=True, exist_ok=True)
    _write(without_schedule(_read(), schedule.name) + crontab_text(schedule))
    return Scheduled(schedule=schedule)


def list_lines() -> list[Scheduled]:
    """The schedules in this login's crontab."""
    return [Scheduled(schedule=schedule) for schedule in read_crontab(_read())]


def remove_line(schedule: Schedule) -> None:
    """Take the schedule's lines out, and no other."""
    _write(without_schedule(_read(), schedule.name))


def _read() -> str:
    """The crontab as it is; without one, or without cron, it is empty."""
    if shutil.which("crontab") is None:
        return ""
    asked = call(["crontab", "-l"])
    return asked.stdout if asked.returncode == 0 else ""


def _write(text: str) -> None:
    if shutil.which("crontab") is None:
        raise Refused("there is neither systemd nor crontab on this machine", hint="install cron, or run systemd")
    done = call(["crontab", "-"], text)
    if done.returncode:
        raise Refused(f"crontab: {(done.stderr.strip().splitlines() or ['it was not taken'])[-1]}")
