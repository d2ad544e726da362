"""The whole: `90-deploy`, unchanged, on the rehearsal host and on a real Debian host."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from opslib.app.headless import run_headless
from tests.rig.judgement import apart_from_load
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip

# scenario, outcome, exit code, cause, a piece of the sentence that an operator reads
CASES = [
    ("sampler-oom", "ok", 0, "gpu-memory/sampler-warmup", "--max-num-seqs 256"),
    ("healthy", "ok", 0, None, "is ready"),
    ("missing-shard", "critical", 2, "checkpoint/missing-file", "missing"),
    ("port-in-use", "critical", 2, "configuration/port-in-use", "8000"),
]
GIVEN = {"consent": "given", "benchmark_repeats": 1}  # one run of each level: nothing is compared here


@contextmanager
def deployable(host_kind, scenario, tmp_path, monkeypatch):
    """The alias of a host that is in the state which the scenario describes."""
    if host_kind == "rehearsal":
        yield f"rehearsal:{scenario}"
        return
    with or_skip(scenario_host(scenario)) as settings:
        fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        (tmp_path / "hosts.toml").write_text("[hosts.debian]\n" + "\n".join(lines) + "\n")
        monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
        yield "debian"


def section(record, name):
    return next(entry for entry in record["sections"] if entry["name"] == name)


@pytest.mark.parametrize("host_kind", ["rehearsal", pytest.param("realhost", marks=pytest.mark.realhost)])
@pytest.mark.parametrize(("scenario", "state", "exit_code", "cause", "phrase"), CASES, ids=[case[0] for case in CASES])
def test_deploy_comes_out_as_the_scenario_says(
    host_kind, scenario, state, exit_code, cause, phrase, tmp_path, monkeypatch
):
    """The same runbook ends with the same outcome, cause and exit code on both hosts, and its record says why."""
    with deployable(host_kind, scenario, tmp_path, monkeypatch) as alias:
        result = run_headless("90-deploy", {"host": alias, **GIVEN}, runs_dir=tmp_path / "runs")
    record = json.loads((result.folder / "record.json").read_text())
    told = json.dumps(record, ensure_ascii=False)
    assert apart_from_load(record) == (state, exit_code), record["outcome"]
    assert result.exit_code == record["exit_code"]
    assert phrase in told
    assert record["cause"] == cause
    if scenario == "port-in-use":  # nothing was installed, and so nothing crashed
        assert [entry["name"] for entry in record["sections"]][-1] == "preflight"
    if scenario == "sampler-oom":
        assert_whole_story(record, result.folder)
    assert_readable_offline(result.folder)


def assert_whole_story(record, folder: Path):
    """Crash seen after it, deciding line quoted, diff shown, ready with the new flag, at least four levels measured."""
    launch = section(record, "launch")["value"]
    assert launch["state"] == "crashed"
    assert launch["crash_seen_after_s"] >= 0  # how soon: benchmarks/watch.py
    evidence = section(record, "investigate")["value"]["diagnosis"]["evidence"]
    assert any("when warming up sampler with 1024 dummy requests" in line["text"] for line in evidence)
    remedy = section(record, "remedy")["value"]
    assert re.search(r"^\+\s+--max-num-seqs 256\b", remedy["diff"], re.MULTILINE)
    relaunch = section(record, "relaunch")["value"]
    assert relaunch["state"] == "ready"
    assert relaunch["running_flags"]["--max-num-seqs"] == "256"
    assert len(section(record, "benchmark")["value"]["levels"]) >= 4
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    pictures = [data for cell in notebook["cells"] for out in cell.get("outputs", []) for data in out.get("data", {})]
    assert {"image/png", "text/html", "text/plain"} <= set(pictures)
    assert list((folder / "evidence").iterdir())


def assert_readable_offline(folder: Path):
    """The page names nothing that would have to be fetched."""
    page = (folder / "record.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(\s*["']?https?:""", page)
    assert "<script src" not in page
