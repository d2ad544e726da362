"""A runbook that is to run by itself: everything that can be wrong with it is refused before it is scheduled."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from opslib.app.binding import is_rehearsal_alias
from opslib.app.catalogue import default_runs_dir, effect_of
from opslib.app.headless import AskedRun, check_run
from opslib.app.timers import call
from opslib.domain.problems import nearest
from opslib.domain.schedule import CALENDAR_WORDS, Schedule, cron_times
from opslib.errors import BadParameter
from opslib.hosts.inventory import inventory_path
from opslib.records.folder import safe_name


def new_schedule(
    runbook: str, given: Mapping[str, Any], words: Sequence[str], on_calendar: Sequence[str], **wanted: Any
) -> Schedule:
    """The schedule of a run; `words`: how the command line says what is `given`; `wanted`: fields of Schedule.

    Raises Refused for everything that `opslib run` refuses, a change without consent, and a secret that a timer
    wouldn't find. Contacts nobody.
    """
    asked = check_run(runbook, given)
    _check_consent(asked)
    _check_references(asked, wanted.get("environment_file"))
    host, unit = asked.parameters.recorded_host, asked.parameters.recorded_unit
    name = wanted.pop("name", None) or "-".join((asked.runbook.partition("-")[2], safe_name(host), safe_name(unit)))
    command = (sys.executable, "-P", "-m", "opslib.cli")  # -P: what lies in the working directory is no module
    try:
        return Schedule(
            name=name,
            runbook=asked.runbook,
            host=host,
            unit=unit,
            on_calendar=tuple(on_calendar),
            command=(*command, "run", asked.runbook, *words),
            when_ended=(*command, "schedule", "ended", name) if asked.options.notify else (),
            notify=asked.options.notify,
            environment=_environment(),
            working_directory=str(default_runs_dir().parent),
            timeout_s=asked.options.timeout_s,
            **wanted,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        option = f"--{field.replace('_', '-')}"
        raise BadParameter(f"{option}: expected letters, digits, . _ -, not {wanted.get(field, name)!r}") from error


def _check_consent(asked: AskedRun) -> None:
    is_change = effect_of(asked.notebook) == "write" and not asked.options.dry_run
    is_practice = all(is_rehearsal_alias(alias) for alias in asked.parameters.aliases)
    if is_change and not is_practice and getattr(asked.parameters, "consent", "given") != "given":
        raise BadParameter("consent: nobody is there to ask when a timer runs this", hint="-p consent=given")


def _check_references(asked: AskedRun, environment_file: str | None) -> None:
    """A timer doesn't have the variables of this shell."""
    references = (*asked.parameters.references, *asked.options.notify)
    lost = [reference for reference in references if reference.startswith("env:")]
    if lost and not environment_file:
        raise BadParameter(
            f"{lost[0]}: a timer doesn't have the variables of this shell", hint="file:PATH, or --environment-file PATH"
        )
    relative = [reference for reference in references if reference.startswith("file:~")]
    if relative:
        raise BadParameter(f"{relative[0]}: a timer may have another home", hint="file:/whole/path")


def _environment() -> dict[str, str]:
    """Where the run finds its hosts and leaves its records, as it would from here."""
    inventory = inventory_path()
    found = {"OPSLIB_RUNS": str(default_runs_dir())}
    if inventory is not None:
        found["OPSLIB_HOSTS"] = str(inventory.resolve())
    for name in ("OPSLIB_NOTEBOOKS", "OPSLIB_LOCKS"):
        if os.environ.get(name):
            found[name] = os.environ[name]
    return found


def next_times(expressions: Sequence[str], *, count: int = 3) -> list[str]:
    """When the calendar elapses next, as systemd words it; [] where there is no systemd to ask.

    Raises BadParameter, with the nearest word that is one, for an expression that is none.
    """
    found: list[str] = []
    for expression in expressions:
        if shutil.which("systemd-analyze") is None:
            if cron_times(expression) is None:
                raise _no_calendar(expression)
            continue
        asked = call(["systemd-analyze", "calendar", f"--iterations={count}", "--", expression])
        if asked.returncode:
            raise _no_calendar(expression)
        found += re.findall(r"^\s*(?:Next elapse|Iter\. #\d+): (.+)$", asked.stdout, re.MULTILINE)
    return found


def _no_calendar(expression: str) -> BadParameter:
    hint = 'as in daily, "Mon..Fri 03:30", "*-*-* 00/6:15:00"; see `man systemd.time`'
    return BadParameter(
        f"--on-calendar {expression!r} is no calendar expression{nearest(expression, CALENDAR_WORDS)}", hint=hint
    )
