"""The command line as a whole: starts at once, offers the nearest name, one clear line and the right exit code."""

import io
import json
import os
import pwd
import subprocess
import sys
from contextlib import nullcontext

import click
import pytest

from opslib import __version__
from opslib.cli import acting, main
from opslib.cli.main import VERBS, call, opslib
from opslib.errors import CouldNotFindOut, HostKeyRefused
from opslib.records.operator import login_name
from tests.fakes import FakeHost

HEAVY = ("pandas", "fabric", "paramiko", "papermill", "nbconvert", "pydantic", "numpy", "rich", "yaml", "asyncssh")


def test_help_imports_nothing_heavy():
    """`opslib --help` knows every verb without importing what a verb needs."""
    command = [sys.executable, "-X", "importtime", "-m", "opslib.cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in result.stderr.splitlines()}
    assert not imported.intersection(HEAVY)
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb, capsys):
    """Each verb in the table is there and says what it does, in the table's words or more."""
    assert call([verb, "--help"]) == 0
    assert f"opslib {verb}" in capsys.readouterr().out


def commands(command, context):
    """Every command that does something by itself, with what its help says."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield context.command_path, command.get_help(context)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from commands(inner, click.Context(inner, info_name=name, parent=context))


def test_each_help_names_its_exit_codes():
    """Whoever writes a script learns from --help what an exit code means there."""
    found = dict(commands(opslib, click.Context(opslib, info_name="opslib")))
    assert len(found) > len(VERBS)
    assert [path for path, told in found.items() if "exit code" not in " ".join(told.lower().split())] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("diagnose - <&-", 3, "There are no lines to read"),
        ("hosts <&- >&-", 0, ""),
        ("hosts <&- >&- 2>&-", 0, ""),
        ("status nosuch x >&-", 4, "there is no host 'nosuch'"),
    ],
)
def test_a_closed_standard_stream_is_an_empty_one(words, code, said):
    """Where standard input, output or error is closed, nobody is there: that is no fault of opslib."""
    environment = {**os.environ, "OPSLIB_HOSTS": "/dev/null"}
    shell = ["sh", "-c", f'exec "$0" -m opslib.cli {words}', sys.executable]
    result = subprocess.run(shell, capture_output=True, text=True, check=False, env=environment)
    told = result.stdout + result.stderr
    assert (result.returncode, said in told, "Error" in told) == (code, True, False), told


def test_version(capsys):
    """`opslib --version` says the version."""
    assert call(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "no command 'rnu'; did you mean run?"),
        (["frobnicate"], "no command 'frobnicate'; known: run, rollout, schedule"),
        (["runs", "list"], "`opslib runs` alone lists them"),
        (["runs", "--runs-dir", "/no/such/place"], "'/no/such/place' does not exist"),
        (["run"], "Missing argument 'RUNBOOK'"),
        (["runs", "--limt", "3"], "No such option"),
        (["runs", "--limit", "0"], "0 is not in the range"),
        (["diagnose", "/no/such/file"], "No such file"),
        (["--jsn"], "No such option"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(arguments, sentence, capsys):
    """Wrong usage is exit code 4 and one line that says what was meant."""
    assert call(arguments) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert sentence in said.err


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (
            HostKeyRefused("the key changed", host="a", hint="ssh-keygen -R a"),
            4,
            "a: the key changed. Next: ssh-keygen",
        ),
        (CouldNotFindOut("no route", host="a"), 3, "a: no route"),
        (KeyboardInterrupt(), 3, "interrupted"),
        (ZeroDivisionError("of all\nthings"), 3, "ZeroDivisionError: of all (a fault of opslib; traceback kept in"),
    ],
)
def test_errors_are_one_line_and_a_code(error, exit_code, line, capsys, monkeypatch):
    """Errors are one line on standard error, and with --json one document on standard output too."""

    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(main.opslib, "main", fail)
    assert call(["runs"]) == exit_code
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert said.err.startswith(f"opslib: {line}")
    assert call(["runs", "--json"]) == exit_code
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == exit_code
    assert document["error"]["kind"] == type(error).__name__ or isinstance(error, KeyboardInterrupt)


def test_output_that_nobody_reads(runbooks):
    """A reader that leaves early (`| head`) is no fault of opslib."""
    command = f"{sys.executable} -m opslib.cli hosts | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stderr == ""


def shell(words, **environment):
    """A command line by the shell, with its streams as the words redirect them."""
    argv = ["bash", "-c", words.replace("opslib", f"{sys.executable} -m opslib.cli")]
    return subprocess.run(argv, capture_output=True, env={**os.environ, **environment}, check=False)


def test_output_that_a_full_disk_takes_no_more():
    """One line says so, with exit code 3; where nobody can be told at all the exit code stands alone."""
    done = shell("opslib hosts --json > /dev/full")
    assert (done.returncode, done.stderr) == (
        3,
        b"opslib: the output can't be written: No space left on device\n",
    )
    assert shell("opslib no-such-verb > /dev/full 2>&1").returncode == 4


def test_terminal_that_knows_few_signs(tmp_path):
    """Signs that its character set lacks are shown in plain ones; JSON stays JSON, with the same meaning."""
    (tmp_path / "hosts.toml").write_text('[hosts.a]\naddress = "127.0.0.1"\nuser = "käse"\n', "utf-8")
    known = {"OPSLIB_HOSTS": str(tmp_path / "hosts.toml"), "PYTHONIOENCODING": "ascii"}
    done = shell("opslib hosts --json", **known)
    assert (done.returncode, "käse" in json.dumps(json.loads(done.stdout), ensure_ascii=False)) == (0, True), done
    assert shell("opslib runs show no-such-✓", **known).returncode == 4


def test_a_change_goes_on_where_nobody_reads(monkeypatch):
    """Progress is told on standard error; a reader that has left, or a full disk, ends no change in its middle."""
    for trouble in (BrokenPipeError(), OSError(28, "No space left on device")):

        class Lost(io.StringIO):
            def write(self, _text, trouble=trouble):
                raise trouble

        monkeypatch.setattr("sys.stderr", Lost())
        acting.tell("install /etc/systemd/system/vllm-a.service")


def test_a_user_whom_nobody_knows(monkeypatch):
    """A container's user need not be in passwd(5): it goes by its number."""
    monkeypatch.setattr("getpass.getuser", lambda: pwd.getpwuid(4294967290).pw_name)
    assert login_name() == f"uid-{os.getuid()}"


@pytest.mark.parametrize("number", ["nan", "inf", "1e999"])
def test_a_number_is_one(number, capsys):
    """What no bound holds back (nan), or what never comes (inf), is refused before anything is asked."""
    assert call(["drain", "rehearsal", "vllm-a", "--deadline", number, "--yes"]) == 4
    assert "--deadline" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_an_end_that_is_asked_for_is_told(name):
    """A signal ends a verb as Ctrl-C does: one line, one document, exit code 3."""
    argv = [sys.executable, "-c", LINGER % name, "opslib", "linger", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, f"\nopslib: interrupted by {name}\n")
    assert json.loads(done.stdout)["error"]["problems"] == [f"interrupted by {name}"]


LINGER = """
import os, signal, sys, time, click
from opslib.cli import acting, main
@click.command()
@click.option("--json", is_flag=True)
def linger(json):
    os.kill(os.getpid(), signal.%s)
    time.sleep(20)
main.VERBS["linger"] = ("__main__:linger", "")
sys.argv = sys.argv[1:]
main.main()
"""


def test_a_change_that_is_ended_says_what_goes_on(monkeypatch):
    """Who ends a verb in its middle learns that the host goes on with what was begun, and how to see what became of it."""
    monkeypatch.setattr(acting, "hold_lock", lambda *_, **__: nullcontext())
    said = "restart was ended by SIGTERM; what was begun on the host goes on. Next: opslib status .* vllm-a"
    with pytest.raises(CouldNotFindOut, match=said), acting.at_work(FakeHost(), "vllm-a", "restart"):
        raise KeyboardInterrupt("SIGTERM")


@pytest.mark.parametrize("line", [[], ["fleet"], ["bench"]], ids=["opslib", "fleet", "bench"])
def test_a_group_alone_shows_what_it_has(line, capsys):
    """Help as it is printed elsewhere, line by line: nothing was asked, so nothing was done (4)."""
    assert call(line) == 4
    told = capsys.readouterr().err
    assert told.startswith("Usage: opslib")
    assert "\nCommands:\n" in told
