"""`opslib run` and `opslib rehearse`: refused before anything, told as it happens, one JSON document on request."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.app import headless
from opslib.app.given import read_given
from opslib.cli.main import call

HOST = ["-p", "host=gpu-07"]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_exit_code_is_the_outcomes(runbooks, n, capsys):
    """Exit codes: ok 0, warning 1, critical 2, unknown 3."""
    assert call(["run", "deploy", *HOST, "-p", f"max_restarts={n}"]) == n


def test_story_is_told(runbooks, capsys):
    """The terminal shows sections, diff, evidence, table, unknown kinds, outcome, and where the record is."""
    assert call(["run", "90", *HOST, "-p", "max_restarts=0"]) == 0
    told = capsys.readouterr().out
    for part in (
        "launch",
        "+ --max-num-seqs 256",
        "│ CUDA out of memory",
        "an unknown kind",
        "✓ ok  ready after 75 s",
        "concurrency  ttft_ms",
        "         64  1,402.5",
        "✓ ok  gpu-07 is ok",
        "record.html",
    ):
        assert part in told
    assert "kernel's own output" not in told
    assert "\x1b" not in told


def test_json_is_one_document(runbooks, capfd):
    """With --json standard output is exactly one document; the story goes to standard error."""
    assert call(["run", "90", *HOST, "--json"]) == 1
    said = capfd.readouterr()
    document = json.loads(said.out)
    assert (document["outcome"]["state"], document["exit_code"], document["host"]) == ("warning", 1, "gpu-07")
    assert document["sections"][0]["name"] == "launch"
    assert document["duration_s"] > 0
    assert "ready after 75 s" in said.err


def test_yaml_file_and_words(runbooks, capsys):
    """Parameters come from YAML files; words on the command line win."""
    file = runbooks / "parameters.yaml"
    file.write_text("host: gpu-07\nmax_restarts: 3\nengine_version: '0.20'\ngpus: [0, 1, 2, 3]\n")
    assert call(["run", "90", "-f", str(file), "-p", "max_restarts=0", "-p", "engine_version=0.10", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    parameters = json.loads((Path(record) / "record.json").read_text())["parameters"]
    assert (parameters["engine_version"], parameters["max_restarts"]) == ("0.10", 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["90", "-p", "prot=1"], "prot: unknown parameter of 90-deploy; did you mean port?"),
        (["90", "-p", "port=abc"], "port: expected a whole number, not 'abc'"),
        (["90", "-p", "port"], "-p port: expected name=value"),
        (["90", "-p", "gpus=[0,"], "gpus: '[0,' is no YAML value"),
        (["90", "-p", "host=gpu-70"], "did you mean 'gpu-07'?"),
        (["90", "-p", "host=rehearsal:sampler-oon"], "did you mean sampler-oom?"),
        (["90-deplyo"], "unknown runbook '90-deplyo'; did you mean 90-deploy?"),
        (["90", "-f", "/no/such.yaml"], "/no/such.yaml: can't be read: No such file or directory"),
        (["90", "-p", "apply_remedies=[A B]"], "apply_remedies[0]: expected a cause"),
        (["90", *HOST, "--runs-dir", "/dev/null/runs"], "--runs-dir /dev/null/runs: the record folder could not"),
        (["90", "-p", "environment={HF_TOKEN: hunter2}"], "HF_TOKEN holds a secret"),
        (["90", "-p", "notfy=env:OPS"], "notfy: unknown parameter of 90-deploy; did you mean notify?"),
        (["90", *HOST, "--notify", "json://hunter2/x"], "notify: give env:NAME or file:PATH, never the address itself"),
        (["90", *HOST, "--notify", "env:NO_SUCH"], "env:NO_SUCH: no such variable is set"),
        (["90", *HOST, "--timeout", "soon"], "--timeout: expected a time span such as 90, 5min or 1h, not 'soon'"),
        (["90", *HOST, "--retries", "99"], "Invalid value for '--retries'"),
        (["90", *HOST, "--dry-rum"], "No such option '--dry-rum'"),
        (["90", "-p", "environment={HF_TOKEN: env:NO_SUCH}"], "env:NO_SUCH: no such variable is set"),
    ],
)
def test_refused_before_anything(runbooks, arguments, sentence, capsys, monkeypatch):
    """What is wrong with a name or a parameter is exit code 4 and one line; nothing is contacted, no record made."""
    monkeypatch.setattr(headless, "execute_runbook", lambda *_: pytest.fail("contacted"))
    assert call(["run", *arguments]) == 4
    said = capsys.readouterr()
    assert sentence in said.err
    assert "hunter2" not in said.err
    assert len(said.err.splitlines()) == 1
    assert not (runbooks / "runs").exists()
    assert call(["run", *arguments, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["exit_code"] == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"host: a\nport: [1,\n", "no YAML: line 3, column 1: "),
        (b"host: \xff", "can't be read: it is not UTF-8 text"),
        (b"host: a\x07", "no YAML: character 8: "),
        (b"host: a\nhost: b\n", "no YAML: line 2, column 1: host is given twice"),
        (b"environment: {A: x, A: y}\n", "no YAML: line 1, column 21: A is given twice"),
        (b"gpus: " + b"[" * 3000, "no YAML: nested too deep"),
    ],
)
def test_yaml_file_that_cannot_be_read(runbooks, content, said, capsys):
    """What is wrong with a file is said by its place in the file, without Python's own words."""
    file = runbooks / "parameters.yaml"
    file.write_bytes(content)
    assert call(["run", "90", "-f", str(file)]) == 4
    told = capsys.readouterr().err
    assert f"{file}: {said}" in told
    assert not re.search(r"Errno|codec|<unicode string>|<byte string>", told)


@pytest.mark.parametrize("text", ["0123", "1:30", "2026-11-30", "0b11"])
def test_what_only_looks_like_a_number_is_a_text(tmp_path, text):
    """An octal, a base-60 number and a date of YAML 1.1 are no other value than what stands there."""
    file = tmp_path / "parameters.yaml"
    file.write_text(f"ticket: {text}\nport: 8001\nwait_s: 1e3\n")
    given = read_given("90-deploy", [file], [f"unit={text}", f"port={text}"])
    assert given == {"ticket": text, "port": text, "wait_s": 1000.0, "unit": text}


def test_help_names_the_runbooks_and_their_parameters(runbooks, capsys):
    """`run --help` lists the runbooks; `run RUNBOOK --parameters` each parameter with its default and meaning."""
    assert call(["run", "--help"]) == 0
    told = capsys.readouterr().out
    assert "90-deploy" in told
    assert "opslib run RUNBOOK --parameters" in told
    assert call(["run", "deploy", "--parameters"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "  8000  " in next(row for row in rows if row.startswith("port "))
    assert "port of the engine on the host" in next(row for row in rows if row.startswith("port "))
    assert call(["run", "deploy", "--parameters", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["parameters"]]
    assert {"host", "unit", "consent"} <= set(names)
    assert not (runbooks / "runs").exists()


def test_yaml_file_that_is_no_mapping(runbooks, capsys):
    """A YAML file must hold names and values."""
    file = runbooks / "parameters.yaml"
    file.write_text("- a\n")
    assert call(["run", "90", "-f", str(file)]) == 4
    assert "expected lines of the form" in capsys.readouterr().err


def test_rehearse_runs_the_deploy_on_the_scenarios_host(runbooks, capsys):
    """`rehearse` runs 90-deploy on the alias of the scenario, with consent."""
    assert call(["rehearse", "--scenario", "healthy", "-p", "max_restarts=0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    parameters = json.loads((Path(record) / "record.json").read_text())["parameters"]
    assert (parameters["host"], parameters["consent"]) == ("rehearsal:healthy", "given")


def test_unknown_scenario_is_refused(runbooks, capsys):
    """An unknown scenario is refused with the nearest name."""
    assert call(["rehearse", "--scenario", "helthy"]) == 4
    assert "unknown scenario 'helthy'; did you mean healthy?" in capsys.readouterr().err


def test_runs_lists_what_was_run(runbooks, capsys):
    """`opslib runs` lists the records, newest first, as a table or as JSON."""
    call(["run", "90", *HOST, "-p", "max_restarts=2"])
    capsys.readouterr()
    assert call(["runs"]) == 0
    line, reason = capsys.readouterr().out.splitlines()
    assert "✗ critical" in line
    assert "gpu-07 is critical" in reason
    assert call(["runs", "--state", "ok"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("none of 1 records in ")
    assert call(["runs", "--host", "nosuch"]) == 0
    assert "matches" in capsys.readouterr().err
    assert call(["runs", "--state", "good"]) == 4
    assert "state: expected" in capsys.readouterr().err
    assert call(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"][0]["state"] == "critical"


def test_no_runs_yet(runbooks, capsys):
    """Without records the list is empty, which is said on standard error."""
    assert call(["runs"]) == 0
    assert "no records in" in capsys.readouterr().err


def test_hosts_lists_the_inventory(runbooks, capsys):
    """`opslib hosts` lists aliases and addresses, and the practice host."""
    assert call(["hosts"]) == 0
    told = capsys.readouterr().out
    assert "gpu-07" in told
    assert "rehearsal" in told
    assert call(["hosts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"][0]["address"] == "192.0.2.7"


def test_lines_come_as_they_happen(runbooks):
    """Without a terminal the output is plain and written line by line."""
    command = [sys.executable, "-m", "opslib.cli", "run", "90", *HOST, "-p", "max_restarts=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("record  ")
        assert process.poll() is None
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_reader_that_leaves_is_no_warning(monkeypatch):
    """Click ends a command with 1 then, which is a warning's code here; what was asked is not known: 3."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert call(["hosts"]) == 3


def test_reader_that_leaves_does_not_end_the_run(runbooks):
    """`opslib run ... | head -1` reads one line; the run goes on to its end and its record is whole."""
    command = f"{sys.executable} -m opslib.cli run 90 -p host=gpu-07 -p max_restarts=0 | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    record = json.loads((Path(result.stdout.split(maxsplit=1)[1].strip()) / "record.json").read_text())
    assert (record["status"], record["outcome"]["state"]) == ("finished", "ok")
    assert result.stderr == ""
