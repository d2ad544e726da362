"""Schedules: the unit texts against golden files, quoting, calendars that cron can say, crontabs left as they were."""

from pathlib import Path

import pytest

from opslib.domain.schedule import (
    Schedule,
    cron_times,
    parse_span,
    quoted,
    read_crontab,
    read_schedule,
    render_crontab,
    render_service,
    render_timer,
    without_schedule,
)
from opslib.errors import BadParameter

CASES = Path(__file__).parents[1] / "cases" / "schedule"

PLAIN = Schedule(
    name="survey-rehearsal-all-units",
    runbook="00-survey-hosts",
    host="rehearsal",
    unit="all-units",
    on_calendar=("hourly",),
    command=("/opt/opslib/bin/python3", "-P", "-m", "opslib.cli", "run", "00-survey-hosts"),
    environment={"OPSLIB_RUNS": "/home/ana/opslib/runs"},
    working_directory="/home/ana/opslib",
)
FULL = Schedule(
    name="deploy-gpu-a-vllm-minimax",
    runbook="90-deploy",
    host="gpu-a",
    unit="vllm-minimax",
    on_calendar=("Mon..Fri 03:30", "*-*-1 00/6:15:00"),
    command=("/opt/opslib/bin/python3", "run", "-p", 'environment={A: "50% of $HOME", B: \\n}', "-p", "gpus=[0, 1]"),
    notify=("file:/etc/opslib/ops.url",),
    when_ended=("/opt/opslib/bin/python3", "schedule", "ended", "deploy-gpu-a-vllm-minimax"),
    environment={"OPSLIB_RUNS": "/srv/100% of/runs", "OPSLIB_HOSTS": "/etc/opslib/hosts.toml"},
    environment_file="/etc/opslib/environment",
    working_directory="/srv/100% of",
    jitter_s=300,
    timeout_s=3600,
    on_failure="page-ops@%n.service",
    scope="system",
)


@pytest.mark.parametrize("schedule", [PLAIN, FULL], ids=["plain", "full"])
def test_texts_are_as_the_golden_files(schedule):
    """The texts of timer, service and crontab are those that were read and agreed to, byte by byte."""
    name = "plain" if schedule is PLAIN else "full"
    told = {
        f"{name}.service": render_service(schedule),
        f"{name}.timer": render_timer(schedule),
        f"{name}.crontab": render_crontab(schedule, "/run/locks/a.lock"),
    }
    for file, text in told.items():
        assert text == (CASES / file).read_text(), file


@pytest.mark.parametrize("schedule", [PLAIN, FULL], ids=["plain", "full"])
def test_a_schedule_is_read_back_from_its_own_texts(schedule):
    """What was scheduled is read back from the timer and from the crontab; any other timer is none of ours."""
    assert read_schedule(render_timer(schedule)) == schedule
    assert read_crontab(f"0 1 * * * backup\n{render_crontab(schedule, '/l')}") == [schedule]
    assert read_schedule("[Timer]\nOnCalendar=daily\n") is None
    assert read_schedule('[X-Opslib]\nSchedule={"name": "of another version"}\n') is None


def test_other_lines_of_a_crontab_stay():
    """Taking a schedule out leaves every other line, those of other schedules too, byte by byte."""
    others = "# my own\nMAILTO=ana\n0 1 * * * backup # opslib schedule\n" + render_crontab(PLAIN, "/l")
    assert without_schedule(others + render_crontab(FULL, "/l"), FULL.name) == others
    assert without_schedule(others, FULL.name) == others


@pytest.mark.parametrize(
    ("expression", "fields"),
    [
        ("daily", "0 0 * * *"),
        ("Hourly", "0 * * * *"),
        ("03:30", "30 3 * * *"),
        ("03:30:00", "30 3 * * *"),
        ("*:00/15", "0-59/15 * * * *"),
        ("*-*-* 04:00", "0 4 * * *"),
        ("*-*-01,15 04:00", "0 4 1,15 * *"),
        ("Sat,Sun 10:05", "5 10 * * Sat,Sun"),
        ("Mon..Fri 08..18:00", "0 8-18 * * Mon-Fri"),
        ("Mon *-*-1 03:00", None),  # both in systemd, either in cron
        ("*:*:0/20", None),
        ("2026-12-24 03:00", None),
        ("daly", None),
        ("", None),
    ],
)
def test_cron_says_the_same_or_nothing(expression, fields):
    """A calendar becomes crontab's five fields where they mean the same, and is refused where they can't."""
    assert cron_times(expression) == fields


def test_a_calendar_that_cron_cannot_say_is_refused():
    """Without systemd, seconds can't be scheduled: exit code 4, and what can."""
    every_20_s = PLAIN.model_copy(update={"on_calendar": ("*:*:0/20",)})
    with pytest.raises(BadParameter, match=r"a crontab can't say this. Next: .*hourly"):
        render_crontab(every_20_s, "/l")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("5min", 300), ("5m", 300), ("1h 30min", 5400), ("2d", 172_800)]
)
def test_spans(text, seconds):
    """A span is seconds, or numbers with units."""
    assert parse_span(text, "--jitter") == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "-5", "1.5h"])
def test_what_is_no_span_is_refused_under_the_options_name(text):
    """A wrong span names the option and what is expected."""
    with pytest.raises(BadParameter, match=r"--jitter: expected a time span such as 90, 5min or 1h"):
        parse_span(text, "--jitter")


def test_only_what_must_be_is_quoted():
    """Words of letters, digits and path characters stay as they are; an empty word is one."""
    assert quoted("a\nb") == '"a\\nb"'
    assert (quoted("/usr/bin/a-b_c.d"), quoted("a=b,c:d"), quoted("")) == ("/usr/bin/a-b_c.d", "a=b,c:d", '""')
