"""`opslib survey` and `opslib check`: what they print, and their exit codes."""

import json
import os
import subprocess
import sys

import pytest

import opslib.app.many as app_many
import opslib.cli.check as cli_check
from opslib.cli.main import call
from opslib.domain.states import State
from opslib.errors import HostUnreachable
from opslib.workflow.benchmark import TokenCheck
from opslib.workflow.survey import UnitCheck
from tests.domain.test_survey import judge, reading
from tests.fakes import FakeHost, answered

CLOSED = {"unit": {"health": {"status_code": None, "problem": "closed"}}}


class Host(FakeHost):
    """Answers the survey with a document, or cannot be reached."""

    def __init__(self, document, **settings):
        super().__init__(**settings)
        self.document = document

    def run_program(self, main, arguments, *, timeout_s=60.0, sudo=False):
        if self.document is None:
            raise HostUnreachable("nothing answered (192.0.2.1 port 22)", hint="is the host up?")
        return answered((main,), json.dumps(self.document))


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """An inventory of three hosts; what each answers is chosen by the test."""
    aliases = ("gpu-a", "gpu-b", "gpu-c")
    (tmp_path / "hosts.toml").write_text("".join(f'[hosts.{alias}]\naddress = "192.0.2.1"\n' for alias in aliases))
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    answers = dict.fromkeys(aliases, reading())

    def bind(alias):
        return Host(answers[alias], alias=alias)

    monkeypatch.setattr(app_many, "open_bound_host", bind)
    monkeypatch.setattr(cli_check, "open_bound_host", bind)
    monkeypatch.setattr("opslib.domain.survey_checks.CLOCK_S", 1e12)  # the reading is of another day
    return answers


def test_all_of_the_inventory_without_a_name(hosts, capsys):
    """Without HOST every host of the inventory is one row; all in order is exit code 0."""
    assert call(["survey"]) == 0
    out = capsys.readouterr()
    assert [line.split()[0] for line in out.out.splitlines()[3:6]] == ["gpu-a", "gpu-b", "gpu-c"]
    assert out.out.startswith("✓ ok  3 hosts: 3 ok")
    assert "3 hosts in " in out.err


@pytest.mark.parametrize("verb", ["survey", "drift"])
def test_the_rehearsal_host_stands_in_only_with_a_word(verb, hosts, tmp_path, monkeypatch, capsys):
    """Without a hosts.toml a timer isn't told that all is well without a word; one that names no host is refused."""
    (tmp_path / "hosts.toml").write_text("")
    assert call([verb]) == 4
    assert "hosts.toml names no host. Next: write [hosts.ALIAS]" in capsys.readouterr().err
    monkeypatch.delenv("OPSLIB_HOSTS")
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    monkeypatch.chdir("/")
    hosts["rehearsal"] = reading()
    call([verb])
    assert "no hosts.toml was found: this is the rehearsal host" in capsys.readouterr().err
    call([verb, *(["--hosts"] if verb == "drift" else []), "rehearsal"])
    assert "no hosts.toml" not in capsys.readouterr().err


def test_one_host_is_told_in_full(hosts, capsys):
    """A single host: every topic, its units and its GPUs."""
    assert call(["survey", "gpu-b"]) == 0
    out = capsys.readouterr().out
    assert "gpu-b: vllm-minimax ready" in out
    assert "VLLM::Worker_TP3" in out
    assert "the journal is persistent" in out
    assert "gpu-c" not in out


@pytest.mark.parametrize(
    ("show", "code"),
    [({}, 0), ({"NeedDaemonReload": "yes"}, 1), ({"ActiveState": "failed", "MainPID": "0", "Result": "exit-code"}, 2)],
)
def test_the_exit_code_is_the_worst_hosts(hosts, capsys, show, code):
    """0 ok, 1 warning, 2 critical: one bad host among good ones decides."""
    hosts["gpu-b"] = reading(show)
    assert call(["survey"]) == code


def test_an_unreachable_host_is_a_row_and_exit_code_3(hosts, capsys):
    """It says why and what to do; the others are told all the same."""
    hosts["gpu-c"] = None
    assert call(["survey"]) == 3
    out = capsys.readouterr().out
    assert "could not find out: nothing answered" in out
    assert "next: is the host up?" in out
    assert "✓ ok" in out


def test_an_unknown_name_is_refused_before_anything_is_asked(hosts, capsys):
    """Exit code 4, with the nearest name, and no host is contacted."""
    hosts.clear()
    assert call(["survey", "gpu-a", "gpu-bb"]) == 4
    assert "gpu-b" in capsys.readouterr().err


def test_json_is_one_document(hosts, capsys):
    """--json: one document with state, time and every host's checks, units, GPUs and holders."""
    hosts["gpu-c"] = None
    assert call(["survey", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], [host["host"] for host in document["hosts"]]) == ("unknown", ["gpu-a", "gpu-b", "gpu-c"])
    assert document["hosts"][0]["units"][0]["port"] == 8000
    assert document["hosts"][2]["identity"] is None
    assert document["hosts"][0]["headroom_bytes"] > 0
    assert (document["hosts"][0]["last_deploy"], document["hosts"][0]["last_benchmark"]) == (None, None)
    assert document["duration_s"] >= 0
    assert document["surveyed_at"].endswith("+00:00")


def unit_check(token_state=None, **changes):
    token = token_state and TokenCheck(
        name="one_token",
        state=token_state,
        summary="one token after 123 ms" if token_state is State.OK else "no token within 10 s",
        ttft_ms=123.4 if token_state is State.OK else None,
    )
    return UnitCheck(unit=judge(changes).units[0], token=token)


LINES = [
    (unit_check(State.OK), 0, "OK - gpu-a: vllm-minimax ready for 3 h, one token after 123 ms | ttft=0.123s restarts=0"),
    (unit_check(State.OK, show={"NRestarts": "2", "ExecMainStartTimestamp": "Sun 2026-11-29 17:55:00 UTC"}), 1, "WARNING - gpu-a: vllm-minimax ready, but restarted 5 min ago (2 restarts), one token after 123 ms | ttft=0.123s restarts=2"),
    (unit_check(State.CRITICAL), 2, "CRITICAL - gpu-a: vllm-minimax ready for 3 h, no token within 10 s | restarts=0"),
    (unit_check(**CLOSED), 2, 'CRITICAL - gpu-a: vllm-minimax "active" for 3 h, but /health closed | restarts=0'),
]  # fmt: skip


@pytest.mark.parametrize(("check", "code", "line"), LINES)
def test_check_prints_one_line_as_plugins_do(hosts, capsys, monkeypatch, check, code, line):
    """STATE - words | figures, on one line of standard output, and the exit code that says the same."""
    monkeypatch.setattr(cli_check, "check_unit", lambda *args, **options: check)
    assert call(["check", "gpu-a", "vllm-minimax"]) == code
    assert capsys.readouterr() == (line + "\n", "")


def test_check_of_a_host_that_cannot_be_asked_is_unknown(hosts, capsys):
    """An unreachable host and an unknown alias are UNKNOWN and exit code 3, on standard output, with what to do."""
    hosts["gpu-a"] = None
    assert call(["check", "gpu-a", "x"]) == 3
    assert capsys.readouterr().out.startswith(
        "UNKNOWN - gpu-a: nothing answered (192.0.2.1 port 22); next: is the host up?"
    )
    assert call(["check", "gpu-x", "x"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("UNKNOWN - gpu-x: there is no host 'gpu-x'")
    assert out.count("\n") == 1


def test_check_is_fit_for_cron():
    """Without a terminal, with an empty environment: one plain line, no colours, nothing on standard error."""
    command = [sys.executable, "-m", "opslib.cli", "check", "rehearsal", "vllm-minimax", "--deadline", "5"]
    environment = {"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "HOME": os.environ["HOME"]}
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == "CRITICAL - rehearsal: vllm-minimax is not known to systemd | restarts=0\n"
    assert done.stderr == ""


def test_survey_of_the_rehearsal_host_from_a_shell():
    """`opslib survey rehearsal` starts the practice host, looks it over and ends it, in a few seconds."""
    command = [sys.executable, "-m", "opslib.cli", "survey", "rehearsal"]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.split()[:3]) == (0, ["1", "host", "in"])
    assert "rehearsal: no engine unit, 8 free GPUs" in done.stdout
    assert "\x1b" not in done.stdout
