"""The recipe for Airflow in docs/fleet.md, as far as it can be tried without Airflow."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from opslib.app.headless import check_run
from opslib.cli import run as run_module
from opslib.cli.main import call

ROOT = Path(__file__).parents[1]
TAUGHT = {0: 0, 1: 0, 2: 2, 3: 3, 4: 4}  # exit code of `opslib run` -> what the task's shell ends with


@pytest.fixture
def recipe(monkeypatch):
    """The block's names, and what its task was given, run against as much of Airflow as it names."""
    text = (ROOT / "docs" / "fleet.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    seen = SimpleNamespace(dag={}, bash={}, hosts=[], run=None)

    def bash(**options):
        seen.bash = options

        def decorate(function):
            seen.run = function
            return SimpleNamespace(expand=lambda host: seen.hosts.extend(host))  # noqa: PLW0108 - by its name

        return decorate

    def dag(**options):
        seen.dag = options
        return lambda function: function

    airflow = ModuleType("airflow.sdk")
    airflow.dag, airflow.task = dag, SimpleNamespace(bash=bash)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", airflow)
    names = {}
    exec(compile(block, "docs/fleet.md", "exec"), names)
    return names, seen


def test_it_maps_the_hosts(recipe):
    """One task per host, each a shell line that holds the argument vector, quoted."""
    names, seen = recipe
    assert seen.hosts == names["HOSTS"]
    assert seen.dag["max_active_runs"] == 1
    assert seen.run("gpu-a").startswith("/opt/opslib/.venv/bin/opslib run 90-deploy -p host=gpu-a ")


@pytest.mark.parametrize(("code", "task"), TAUGHT.items())
def test_exit_codes_become_task_states(recipe, tmp_path, code, task):
    """Ok and a warning are a success; critical, unknown and refused keep their code, for retries and skips."""
    names, seen = recipe
    program = tmp_path / "opslib"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    names["OPSLIB"] = str(program)
    assert subprocess.run(["bash", "-c", seen.run("gpu-a")], check=False).returncode == task


def test_the_command_line_takes_its_words(recipe, monkeypatch, tmp_path):
    """Each word is one that `opslib run` knows, and its parameters are right for the runbook."""
    names, _ = recipe
    (tmp_path / "hosts.toml").write_text('[hosts.gpu-a]\naddress = "192.0.2.1"\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    given = {}

    def tell_run(runbook, words, **_):
        given.update(check_run(runbook, words).parameters.model_dump())
        return 0

    monkeypatch.setattr(run_module, "tell_run", tell_run)
    assert call(names["command"]("gpu-a")[1:]) == 0
    assert (given["host"], given["consent"], given["model"]) == ("gpu-a", "given", "MiniMax-M2")


@pytest.mark.slow
def test_a_dry_run_takes_it_whole(recipe, monkeypatch, tmp_path, capsys):
    """The same argument vector with --dry-run, on a practice host: asked, nothing changed, one document."""
    names, _ = recipe
    del names["PARAMETERS"]["model"]
    names["PARAMETERS"]["max_num_seqs"] = 256  # else the plan of a host that has never launched is critical
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    assert call([*names["command"]("rehearsal:healthy")[1:], "--dry-run"]) == 0
    assert '"is_dry_run": true' in capsys.readouterr().out
