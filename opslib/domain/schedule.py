"""A runbook that runs by itself: the texts of a systemd timer and service, or a crontab line."""

import re
import shlex
from collections.abc import Mapping

from pydantic import Field

from opslib.domain.states import Value
from opslib.errors import BadParameter

PREFIX = "opslib-"
MARK = "# opslib schedule "  # in a crontab: begins the line that holds the schedule, ends those that run it
STOP_S = 100  # for a run that is told to end: its cell, its kernel, its record
FACTS = "[X-Opslib]"  # systemd ignores sections whose name begins with X-; `opslib schedule list` reads it

_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./=-]+")
_SPAN = re.compile(r"(\d+)\s*(s|sec|m|min|h|d)?")
_SPAN_S = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class Schedule(Value):
    """What runs when: the command of one headless run, its calendar, and what the manager does around it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")
    runbook: str
    host: str
    unit: str
    on_calendar: tuple[str, ...] = Field(min_length=1)
    command: tuple[str, ...]
    notify: tuple[str, ...] = ()  # references of who is told
    when_ended: tuple[str, ...] = ()  # command that tells of a run which could not tell itself (killed, out of memory)
    environment: Mapping[str, str] = {}
    environment_file: str | None = None
    working_directory: str
    jitter_s: int = Field(0, ge=0)
    timeout_s: int | None = None  # of the run; the manager waits somewhat longer
    on_failure: str = Field("", pattern=r"^[A-Za-z0-9:_.@%\\-]*$")  # a unit that systemd starts when a run fails
    scope: str = "user"

    @property
    def service(self) -> str:
        """The service's name."""
        return f"{PREFIX}{self.name}.service"

    @property
    def timer(self) -> str:
        """The timer's name."""
        return f"{PREFIX}{self.name}.timer"


def parse_span(text: str, name: str) -> int:
    """Seconds of a time span; raises BadParameter under the option's `name`.

    >>> parse_span("90", "--jitter"), parse_span("1h 30min", "--jitter")
    (90, 5400)
    """
    spans = text.strip().lower()
    if not re.fullmatch(rf"(?:{_SPAN.pattern}\s*)+", spans):
        raise BadParameter(f"{name}: expected a time span such as 90, 5min or 1h, not {text!r}")
    return sum(int(number) * _SPAN_S[unit or None] for number, unit in _SPAN.findall(spans))


def quoted(word: str, *, is_command: bool = True) -> str:
    r"""A word as systemd reads it back (systemd.service(5), quoting): specifiers and variables mean themselves.

    >>> quoted("a b"), quoted('50% of "$X"'), quoted("gpus=[0, 1]")
    ('"a b"', '"50%% of \\"$$X\\""', '"gpus=[0, 1]"')
    """
    if _PLAIN.fullmatch(word):
        return word
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    text = text.replace("$", "$$") if is_command else text
    return f'"{text}"'


def render_service(schedule: Schedule) -> str:
    """The service: one run, never two at once (a oneshot that is active is not started again), ended in order."""
    unit = [
        f"Description=opslib: {schedule.runbook} on {schedule.host}, {schedule.unit}".replace("%", "%%"),
        "Wants=network-online.target" if schedule.scope == "system" else "",
        "After=network-online.target" if schedule.scope == "system" else "",
        f"OnFailure={schedule.on_failure}" if schedule.on_failure else "",
    ]
    variables = [quoted(f"{name}={value}", is_command=False) for name, value in schedule.environment.items()]
    service = [
        "Type=oneshot",
        f"ExecStart={_command(schedule.command)}",
        f"ExecStopPost={_command(schedule.when_ended)}" if schedule.when_ended else "",
        f"WorkingDirectory={schedule.working_directory.replace('%', '%%')}",
        *(f"Environment={variable}" for variable in variables),
        f"EnvironmentFile={schedule.environment_file.replace('%', '%%')}" if schedule.environment_file else "",
        "# 0 ok, 1 warning; 2 critical, 3 could not find out and 4 refused are failures",
        "SuccessExitStatus=1",
        f"TimeoutStartSec={schedule.timeout_s + 2 * STOP_S if schedule.timeout_s else 'infinity'}",
        "# SIGTERM to the run alone: it ends its kernel and writes its record",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
    ]
    return _sections({"[Unit]": unit, "[Service]": service})


def render_timer(schedule: Schedule) -> str:
    """The timer: the calendar, spread by the jitter; a run that was missed (power off) is caught up once."""
    timer = [
        *(f"OnCalendar={expression}" for expression in schedule.on_calendar),
        f"RandomizedDelaySec={schedule.jitter_s}",
        "AccuracySec=1s",
        "Persistent=true",
        f"Unit={schedule.service}",
    ]
    return _sections(
        {
            "[Unit]": [f"Description=opslib: when {schedule.runbook} runs on {schedule.host}".replace("%", "%%")],
            "[Timer]": timer,
            "[Install]": ["WantedBy=timers.target"],
            FACTS: [f"Schedule={schedule.model_dump_json()}"],
        }
    )


def read_schedule(timer_text: str) -> Schedule | None:
    """The schedule that a timer of ours was rendered from, None for any other timer."""
    line = next((line for line in timer_text.splitlines() if line.startswith("Schedule={")), "")
    try:
        return Schedule.model_validate_json(line.removeprefix("Schedule="))
    except ValueError:
        return None


def read_crontab(text: str) -> list[Schedule]:
    """The schedules that a crontab holds."""
    found = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(f"{MARK}{{")]
    return [Schedule.model_validate_json(line) for line in found]


def without_schedule(text: str, name: str) -> str:
    """A crontab without the lines of one schedule; all others stay as they are."""
    own = [schedule.model_dump_json() for schedule in read_crontab(text) if schedule.name == name]
    drop = {f"{MARK}{line}" for line in own}
    kept = [line for line in text.splitlines() if line not in drop and not line.endswith(f" {MARK}{name}")]
    return "".join(f"{line}\n" for line in kept)


def _command(words: tuple[str, ...]) -> str:
    return " ".join(quoted(word) for word in words)


def _sections(sections: Mapping[str, list[str]]) -> str:
    return "\n\n".join("\n".join([title, *filter(None, lines)]) for title, lines in sections.items()) + "\n"


_WORDS = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * Mon",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
}
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_FIELD = r"\*|\*/\d+|\d+(?:/\d+|\.\.\d+)?(?:,\d+)*"
_CALENDAR = re.compile(
    rf"(?:(?P<days>{_DAY}(?:(?:,|\.\.){_DAY})*)\s+)?(?:\*-(?P<month>\*|\d+)-(?P<day>\*|\d+(?:,\d+)*)\s+)?"
    rf"(?P<hour>{_FIELD}):(?P<minute>{_FIELD})(?::00?)?",
    re.IGNORECASE,
)
CALENDAR_WORDS = tuple(_WORDS)


def cron_times(expression: str) -> str | None:
    """The five fields of crontab(5) for a systemd calendar expression, None where cron can't say it.

    >>> cron_times("Mon..Fri 03:30"), cron_times("*-*-1 00/6:15:00"), cron_times("*:*:0/20")
    ('30 3 * * Mon-Fri', '15 0-23/6 1 * *', None)
    """
    if expression.strip().lower() in _WORDS:
        return _WORDS[expression.strip().lower()]
    found = _CALENDAR.fullmatch(expression.strip())
    if not found:
        return None
    hour, minute = _cron_field(found["hour"], 23), _cron_field(found["minute"], 59)
    days = (found["days"] or "*").replace("..", "-")
    if days != "*" and found["day"] not in (None, "*"):
        return None  # cron would run on either, systemd runs on both together
    day, month = (_cron_field(found[name] or "*", 31) for name in ("day", "month"))
    return f"{minute} {hour} {day} {month} {days}"


def _cron_field(field: str, last: int) -> str:
    text = re.sub(r"\d+", lambda number: str(int(number[0])), field).replace("..", "-")
    return re.sub(r"^(\d+)/", rf"\1-{last}/", text)


def render_crontab(schedule: Schedule, lock: str) -> str:
    """The crontab lines where there is no systemd; two runs at once are kept apart by `flock`, missed ones are lost.

    Raises BadParameter for a calendar that cron can't say.
    """
    lines = [f"{MARK}{schedule.model_dump_json()}"]
    for expression in schedule.on_calendar:
        times = cron_times(expression)
        if times is None:
            raise BadParameter(
                f"--on-calendar {expression!r}: a crontab can't say this",
                hint='without systemd: hourly, daily, weekly, monthly, or as in "Mon..Fri 03:30", "*-*-1 00/6:15"',
            )
        lines.append(f"{times} {_cron_command(schedule, lock)} {MARK}{schedule.name}")
    return "\n".join(lines) + "\n"


def _cron_command(schedule: Schedule, lock: str) -> str:
    assigned = [f"{name}={shlex.quote(value)}" for name, value in schedule.environment.items()]
    wait = f"sleep $(shuf -n 1 -i 0-{schedule.jitter_s}); " if schedule.jitter_s else ""
    source = f"set -a; . {shlex.quote(schedule.environment_file)}; set +a; " if schedule.environment_file else ""
    run = " ".join([*assigned, "flock", "--nonblock", shlex.quote(lock), shlex.join(schedule.command)])
    return f"{wait}{source}cd {shlex.quote(schedule.working_directory)} && {run}".replace("%", "\\%")
