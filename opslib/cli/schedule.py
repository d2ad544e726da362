"""`opslib schedule`: a runbook that runs by itself."""

import json
import os
from pathlib import Path
from typing import Any

import click

from opslib.app.catalogue import find_runbook
from opslib.app.crontab import crontab_text, install_line, list_lines, remove_line
from opslib.app.given import read_given
from opslib.app.notify import send
from opslib.app.schedule import new_schedule, next_times
from opslib.app.timers import (
    Scheduled,
    default_scope,
    diff_of,
    has_systemd,
    install,
    list_timers,
    planned_files,
    remove,
)
from opslib.cli.options import file_option, json_option, parameter_option
from opslib.cli.running import given_options, headless_options
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.domain.notice import killed_notice
from opslib.domain.problems import nearest
from opslib.domain.schedule import PREFIX, Schedule, parse_span
from opslib.errors import BadParameter, UnknownName

CRON = "crontab"
_TOLD_ITSELF = {"success", "exit-code"}  # results of a service whose run has come to its own end


class _ScheduleGroup(click.Group):
    """`schedule RUNBOOK ...` is `schedule add RUNBOOK ...`: a runbook is no verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_verb = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_verb else ["add" if args else "list", *args])


@click.group("schedule", cls=_ScheduleGroup, context_settings={"help_option_names": ["-h", "--help"]})
def schedule_command() -> None:
    """Let a runbook run by itself: opslib schedule RUNBOOK --on-calendar daily shows the timer, --install makes it.

    Exit code 0: shown or done; 3: systemd or cron could not be asked; 4: refused. A run's own exit code is in `list`.
    """


@schedule_command.command("add", short_help="Show the timer that runs RUNBOOK, or install it.")
@click.argument("runbook")
@click.option("--on-calendar", multiple=True, required=True, metavar="WHEN", help='As in "Mon..Fri 03:30" or daily.')
@file_option
@parameter_option()
@headless_options
@click.option("--name", help="Name of the schedule [RUNBOOK-HOST-UNIT].")
@click.option("--jitter", default="0", show_default=True, metavar="SPAN", help="Spread the starts over this time.")
@click.option("--on-failure", default="", metavar="UNIT", help="Unit that systemd starts when a run fails.")
@click.option("--environment-file", type=click.Path(path_type=Path), help="Variables of the run, for env:NAME.")
@click.option("--system/--user", "is_system", default=None, help="Whose systemd [--system for root].")
@click.option("--install", "--yes", "is_install", is_flag=True, help="Do what is shown.")
@json_option
def add_command(
    runbook: str,
    on_calendar: tuple[str, ...],
    files: tuple[Path, ...],
    words: tuple[str, ...],
    jitter: str,
    *,
    is_install: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Show the timer that runs RUNBOOK, or install it: no two runs at once, missed runs are caught up.

    Exit code 0: shown, or installed; 3: systemd or cron could not be asked; 4: refused.
    """
    name, _ = find_runbook(runbook)
    own = given_options(options)
    given = {**read_given(name, files, words), **own}
    schedule = new_schedule(
        name,
        given,
        _words(files, words, own),
        on_calendar,
        name=options["name"],
        jitter_s=parse_span(jitter, "--jitter"),
        on_failure=options["on_failure"],
        environment_file=_absolute(options["environment_file"]),
        scope=_scope(is_system=options["is_system"]),
    )
    times = next_times(on_calendar)
    shown = crontab_text(schedule) if schedule.scope == CRON else diff_of(planned_files(schedule))
    made = (install_line(schedule) if schedule.scope == CRON else install(schedule)) if is_install else None
    if as_json:
        document = {"schedule": schedule.model_dump(mode="json"), "next": times, "is_installed": made is not None}
        show(json.dumps({**document, "shown": shown}, ensure_ascii=False))
        return 0
    show(shown or f"{schedule.name} is installed as it would be")
    show("\n".join(f"next      {time}" for time in times))
    _tell_end(schedule, made)
    return 0


_FLAGS = {"timeout_s": "--timeout", "retries": "--retries", "notify": "--notify", "notify_on": "--notify-on"}


def _words(files: tuple[Path, ...], words: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    """How the run is given its parameters; a file is read again at each run."""
    told = [part for file in files for part in ("-f", str(file.resolve()))]
    told += [part for word in words for part in ("-p", word)]
    for name, value in options.items():
        for item in value if isinstance(value, tuple) else (value,):
            told += [_FLAGS[name], str(item)]
    return told


def _absolute(path: Path | None) -> str | None:
    if path is not None and not path.is_file():
        raise BadParameter(f"--environment-file {path}: there is no such file")
    return None if path is None else str(path.resolve())


def _scope(*, is_system: bool | None) -> str:
    if is_system is None:
        return default_scope() if has_systemd() else CRON
    return "system" if is_system else "user"


def _tell_end(schedule: Schedule, made: Scheduled | None) -> None:
    """What was done, or how to do it, and what to know about it."""
    if made is None:
        show("nothing was written; do it: the same command with --install")
        return
    show(f"installed {schedule.name}" + (f", next at {made.next_at}" if made.next_at else ""))
    show(f"undo      opslib schedule remove {schedule.name} --yes")
    if schedule.scope == "user":
        show("note      timers of a login run while it is logged in; always: loginctl enable-linger")
    if schedule.scope == CRON:
        show("note      cron does not catch up what it missed while the machine was off")


@schedule_command.command("list", short_help="List the schedules, and how each last run ended.")
@json_option
def list_command(*, as_json: bool) -> int:
    """List the schedules: when each runs next, and how its last run ended.

    Exit code 0, however the runs ended; 3: systemd or cron could not be asked.
    """
    entries = [*list_timers(), *list_lines()]
    if as_json:
        show(json.dumps({"schedules": [entry.model_dump(mode="json") for entry in entries]}, ensure_ascii=False))
        return 0
    rows = [
        [
            entry.schedule.name,
            entry.schedule.runbook,
            entry.schedule.host,
            entry.schedule.unit,
            entry.next_at or " ".join(entry.schedule.on_calendar),
            entry.last_at or "-",
            "running" if entry.state == "activating" else f"{entry.result} {entry.exit_status}".strip() or "-",
            entry.schedule.scope,
        ]
        for entry in entries
    ]
    columns = ("schedule", "runbook", "host", "unit", "next", "last", "ended", "where")
    show("\n".join(plain_table(columns, rows)) if rows else "no schedule on this machine")
    return 0


@schedule_command.command("remove", short_help="Show what would be taken away, or do it.")
@click.argument("name")
@click.option("--yes", "is_yes", is_flag=True, help="Do what is shown.")
def remove_command(name: str, *, is_yes: bool) -> int:
    """Show what would be taken away, or do it; a run that is going on is not ended, its records stay.

    Exit code 0: shown, or removed; 3: systemd or cron could not be asked; 4: refused.
    """
    schedule = _find(name)
    is_cron = schedule.scope == CRON
    show(crontab_text(schedule).rstrip() if is_cron else "\n".join(str(path) for path in planned_files(schedule)))
    if not is_yes:
        show("nothing was removed; do it: the same command with --yes")
        return 0
    if is_cron:
        remove_line(schedule)
    else:
        remove(schedule)
    show(f"removed {schedule.name}")
    return 0


@schedule_command.command("ended", hidden=True)
@click.argument("name")
def ended_command(name: str) -> int:
    """Tell of a run that was killed; the service calls it when a run has ended, however it did."""
    result = os.environ.get("SERVICE_RESULT", "success")
    if result in _TOLD_ITSELF:
        return 0
    schedule = _find(name)
    how = " ".join(filter(None, (result, os.environ.get("EXIT_STATUS"))))
    runs_dir = schedule.environment.get("OPSLIB_RUNS", "runs")
    notice = killed_notice(schedule.name, schedule.host, schedule.unit, how, runs_dir)
    for sentence in send(schedule.notify, notice, ()):
        show(sentence)
    return 0


def _find(name: str) -> Schedule:
    """The schedule of that name, whether told with or without what systemd adds; raises UnknownName."""
    known = {entry.schedule.name: entry.schedule for entry in (*list_timers(), *list_lines())}
    wanted = name.removeprefix(PREFIX).removesuffix(".timer").removesuffix(".service")
    if wanted not in known:
        raise UnknownName(f"there is no schedule {name!r}{nearest(wanted, list(known)) or '; there is none at all'}")
    return known[wanted]
