"""`opslib schedule`: shown first, installed on request, listed, removed; what is wrong is refused before anything."""

import json
import os
import stat
from pathlib import Path

import pytest

from opslib.app import timers
from opslib.cli.main import call

NIGHTLY = ["schedule", "deploy", "--on-calendar", "Mon..Fri 03:30", "-p", "host=gpu-07", "-p", "consent=given"]

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *NextElapse*) echo NextElapseUSecRealtime=Mon 2026-11-30 03:30:00 UTC;;
  *ActiveState*) printf 'ActiveState=failed\\nResult=exit-code\\nExecMainStatus=2\\nExecMainStartTimestamp=Sun 03:30\\n';;
esac
"""
CRONTAB = """#!/bin/sh
if [ "$1" = -l ]; then cat {log} 2>/dev/null || exit 1; else cat > {log}; fi
"""


@pytest.fixture
def machine(runbooks, monkeypatch):
    """A login's own directories, and programs that note what they are asked."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(runbooks / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(runbooks / "state"))
    monkeypatch.setattr(timers, "unit_dir", lambda scope: runbooks / "config/systemd" / scope)
    monkeypatch.setenv("PATH", f"{runbooks}/bin:{os.environ['PATH']}")
    (runbooks / "bin").mkdir()
    return runbooks


def put_program(machine: Path, name: str, text: str) -> Path:
    """A program in the path that logs; returns the log."""
    program, log = machine / "bin" / name, machine / f"{name}.log"
    program.write_text(text.format(log=log))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return log


@pytest.fixture
def asked(machine, monkeypatch):
    """What systemctl was asked, on a machine with systemd."""
    monkeypatch.setattr("opslib.cli.schedule.has_systemd", lambda: True)
    monkeypatch.setattr(timers, "has_systemd", lambda: True)
    return put_program(machine, "systemctl", SYSTEMCTL)


def test_it_is_shown_first(machine, asked, capsys):
    """Without --install the units are shown as a diff, with the next times; nothing is written and nobody asked."""
    assert call([*NIGHTLY, "--user", "--jitter", "5min"]) == 0
    told = capsys.readouterr().out
    for line in ("+OnCalendar=Mon..Fri 03:30", "+RandomizedDelaySec=300", "+Persistent=true", "+Type=oneshot"):
        assert line in told
    assert "run 90-deploy -p host=gpu-07 -p consent=given\n" in told
    assert "nothing was written; do it: the same command with --install" in told
    assert told.count("next      ") == 3
    assert not (machine / "config").exists()
    assert not asked.exists()


def test_it_is_installed_listed_and_removed(machine, asked, capsys):
    """--install writes timer and service and starts the timer; list tells how the last run ended; remove undoes it."""
    assert call([*NIGHTLY, "--user", "--install"]) == 0
    told = capsys.readouterr().out
    assert "installed deploy-gpu-07-vllm-minimax, next at Mon 2026-11-30 03:30:00 UTC" in told
    assert "opslib schedule remove deploy-gpu-07-vllm-minimax --yes" in told
    timer = "opslib-deploy-gpu-07-vllm-minimax.timer"
    assert asked.read_text().splitlines()[1:4] == [
        f"--user {w}" for w in ("daemon-reload", f"enable {timer}", f"restart {timer}")
    ]
    assert call([*NIGHTLY, "--user"]) == 0
    assert "is installed as it would be" in capsys.readouterr().out

    assert call(["schedule", "list"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert "gpu-07" in row
    assert "exit-code 2" in row
    assert call(["schedule"]) == 0
    assert call(["schedule", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["schedules"][0]["schedule"]["runbook"] == "90-deploy"

    assert call(["schedule", "remove", "deploy-gpu-07-vllm-minimx"]) == 4
    assert "did you mean deploy-gpu-07-vllm-minimax?" in capsys.readouterr().err
    assert call(["schedule", "remove", timer]) == 0
    assert "nothing was removed" in capsys.readouterr().out
    assert call(["schedule", "remove", "deploy-gpu-07-vllm-minimax", "--yes"]) == 0
    assert list((machine / "config/systemd/user").iterdir()) == []
    assert f"--user disable --now {timer}" in asked.read_text()


@pytest.mark.parametrize(("scope", "hint"), [("--user", "loginctl enable-linger"), ("--system", "leave --system out")])
def test_a_systemd_that_does_not_answer_gets_no_units(machine, asked, scope, hint, capsys):
    """Without a bus one line says so and what to do; no unit is left that nobody reads."""
    put_program(machine, "systemctl", "#!/bin/sh\necho Failed to connect to bus: No medium found >&2\nexit 1\n")
    assert call([*NIGHTLY, scope, "--install"]) == 4
    told = capsys.readouterr().err
    assert "doesn't answer: Failed to connect to bus: No medium found; nothing was written. Next: " in told
    assert hint in told
    assert not (machine / "config").exists()


def test_without_systemd_it_is_a_crontab_line(machine, monkeypatch, capsys):
    """Where there is no systemd the login's crontab gets the line, beside its own; list and remove know it."""
    monkeypatch.setattr("opslib.cli.schedule.has_systemd", lambda: False)
    monkeypatch.setattr(timers, "has_systemd", lambda: False)
    crontab = put_program(machine, "crontab", CRONTAB)
    crontab.write_text("0 1 * * * backup\n")
    assert call([*NIGHTLY, "--install"]) == 0
    assert "cron does not catch up" in capsys.readouterr().out
    assert call([*NIGHTLY, "--install"]) == 0  # again: not a second time
    lines = crontab.read_text().splitlines()
    assert lines[0] == "0 1 * * * backup"
    assert len(lines) == 3
    assert lines[2].startswith("30 3 * * Mon-Fri cd ")
    capsys.readouterr()
    assert call(["schedule", "list"]) == 0
    assert "crontab" in capsys.readouterr().out.splitlines()[1]
    assert call(["schedule", "remove", "deploy-gpu-07-vllm-minimax", "--yes"]) == 0
    assert crontab.read_text() == "0 1 * * * backup\n"


REFUSED = [
    (["deplyo"], "unknown runbook 'deplyo'; did you mean 90-deploy?"),
    (["deploy", "-p", "prot=1"], "prot: unknown parameter of 90-deploy; did you mean port?"),
    (["deploy", "-p", "host=gpu-70"], "did you mean 'gpu-07'?"),
    (["deploy", "-p", "environment={HF_TOKEN: hunter2}"], "HF_TOKEN holds a secret"),
    (["deploy", "-p", "host=gpu-07"], "consent: nobody is there to ask when a timer runs this. Next: -p consent=given"),
    (["deploy", "--notify", "json://hunter2/x"], "notify: give env:NAME or file:PATH, never the address itself"),
    (["deploy", "--notify", "env:OPS_URL"], "env:OPS_URL: a timer doesn't have the variables of this shell"),
    (["deploy", "--notify-on", "never"], "Invalid value for '--notify-on'"),
    (["deploy", "--jitter", "soon"], "--jitter: expected a time span such as 90, 5min or 1h, not 'soon'"),
    (["deploy", "--timeout", "1x"], "--timeout: expected a time span"),
    (["deploy", "--retries", "99"], "Invalid value for '--retries'"),
    (["deploy", "--name", "a/b"], "--name: expected letters, digits, . _ -, not 'a/b'"),
    (["deploy", "--on-failure", "a b"], "--on-failure: expected letters, digits, . _ -, not 'a b'"),
    (["deploy", "--environment-file", "/no/such"], "--environment-file /no/such: there is no such file"),
    (["deploy", "-f", "/no/such.yaml"], "/no/such.yaml: can't be read: No such file or directory"),
    (["deploy", "--on-calender", "daily"], "No such option '--on-calender'"),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_mistake_is_refused_before_it_is_scheduled(machine, asked, monkeypatch, arguments, sentence, capsys):
    """Whatever `opslib run` would refuse at 03:00 is refused now: exit code 4, one line, nothing written or contacted."""
    monkeypatch.setenv("OPS_URL", "json://127.0.0.1:1/x")
    assert call(["schedule", *arguments, "--on-calendar", "daily", "--install"]) == 4
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert "hunter2" not in said
    assert not asked.exists()
    assert not (machine / "config").exists()
    assert call(["schedule", *arguments, "--on-calendar", "daily", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["exit_code"] == 4


@pytest.mark.parametrize(
    ("calendar", "hint"), [("daly", "did you mean daily?"), ("25:00", "as in daily, "), ("", "as in daily")]
)
def test_a_calendar_that_is_none_is_refused(machine, asked, calendar, hint, capsys):
    """A calendar expression is checked by systemd's own parser, else by what cron can say."""
    assert call(["schedule", "deploy", "-p", "host=rehearsal", "--on-calendar", calendar]) == 4
    said = capsys.readouterr().err
    assert f"--on-calendar {calendar!r} is no calendar expression" in said
    assert hint in said


def test_a_run_that_was_killed_is_told_of(machine, asked, monkeypatch, capsys):
    """What the service calls at the end of a run is silent but where the run could not tell of itself."""
    (machine / "url").write_text("json://127.0.0.1:1/x")
    told = ["--notify", f"file:{machine}/url", "--name", "nightly", "--user", "--install"]
    assert call([*NIGHTLY, *told]) == 0
    service = (machine / "config/systemd/user/opslib-nightly.service").read_text()
    assert "schedule ended nightly\n" in service
    capsys.readouterr()
    for result, said in (("success", ""), ("exit-code", ""), ("oom-kill", f"could not notify file:{machine}/url: ")):
        monkeypatch.setenv("SERVICE_RESULT", result)
        assert call(["schedule", "ended", "nightly"]) == 0
        assert capsys.readouterr().out.startswith(said)
        assert bool(said) or not capsys.readouterr().out
