"""The loop of verdict, change, relaunch and proof, on the rehearsal host."""

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from opslib.app.headless import run_headless
from opslib.app.investigating import _serves_now
from opslib.app.run import begin_run
from opslib.app.sections import crash, remedies
from opslib.app.sections.install import confirm, install, plan_unit
from opslib.app.sections.launch import launch
from opslib.app.sections.overall import identify, what_is_left
from opslib.cli.main import call
from opslib.domain.states import State
from opslib.domain.unit_change import Change
from opslib.records.index import list_records
from opslib.records.seal import verify_record
from opslib.rehearsal.scenarios import load_scenario
from opslib.workflow.install import read_unit_text
from opslib.workflow.investigate import Evidence
from tests.domain.test_survey import judge
from tests.rig.judgement import apart_from_load

UNIT = "vllm-minimax"


def section(record, name):
    return next(entry for entry in record["sections"] if entry["name"] == name)


@pytest.mark.parametrize("name", ["utilization-too-low"])  # the others: tests/test_scenarios.py
def test_the_loop_closes_by_itself(name, tmp_path):
    """In at most two tries, allowed by the list of causes alone; the new process is proven to run the change."""
    scenario = load_scenario(name)
    given = {"apply_remedies": [scenario.expected.cause], "consent": "given", **scenario.parameters}
    small = {"concurrency_levels": [1], "requests_per_stream": 1}
    result = run_headless("90-deploy", {"host": f"rehearsal:{name}", **given, **small}, runs_dir=tmp_path)
    record = json.loads((result.folder / "record.json").read_text())
    assert apart_from_load(record) == ("ok", 0), record["outcome"]
    assert record["cause"] == scenario.expected.cause
    assert re.search(scenario.expected.sentence, record["outcome"]["reason"])
    relaunch = section(record, "relaunch")["value"]
    assert 1 <= len(relaunch["attempts"]) <= 2
    assert relaunch["attempts"][-1]["outcome"] == "ready"
    assert relaunch["snapshot"]["argv"]
    manifests = list((result.folder / "evidence").glob("*/manifest.json"))
    assert manifests
    for manifest in manifests:
        files = json.loads(manifest.read_text())["files"]
        assert {"journal.jsonl", "unit.txt", "host.json", "snapshot.json"} <= {file["file"] for file in files}
        assert all(file.get("sha256") or file["problem"] for file in files)


@pytest.fixture
def crashed(tmp_path, monkeypatch):
    """A run of the deploy's sections up to the crash, in this process."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path))
    run = begin_run("90-deploy", {"host": "rehearsal", "consent": "given", "max_restarts": 2})
    identify(run)
    plan_unit(run)
    asyncio.run(confirm(run))
    install(run)
    asyncio.run(launch(run))
    crash.investigate(run)
    return run


def test_consent_does_not_cover_a_remedy(crashed):
    """consent=given answers for the plan that was shown; a remedy needs its cause in apply_remedies, or a click."""
    before = read_unit_text(crashed.host, UNIT)
    crashed.parameters = crashed.parameters.model_copy(update={"apply_remedies": []})
    asyncio.run(crash.remedy(crashed))
    result = crashed.results["remedy"]
    assert result.state is State.CRITICAL
    assert "apply_remedies" in result.summary
    assert read_unit_text(crashed.host, UNIT) == before
    assert what_is_left(crashed, crashed.judge())[0].startswith("Nothing has to be undone: a practice host is gone")
    settings = crashed.host.settings.model_copy(update={"is_rehearsal": False})
    real = SimpleNamespace(
        answers=crashed.answers, parameters=crashed.parameters, host=SimpleNamespace(settings=settings)
    )
    left, title, stop, *undo = what_is_left(real, crashed.judge())
    assert left.startswith(f"{UNIT} stays installed, and systemd may start it again")
    assert (title, stop) == ("Undo everything:", f"sudo systemctl stop {UNIT} &&")
    assert undo[-1] == "sudo systemctl daemon-reload"
    assert all(line.endswith(" &&") for line in undo[:-1])
    assert all(line.count("sudo ") == 1 for line in undo)


def test_what_makes_it_worse_is_taken_back(crashed, monkeypatch, tmp_path, capsys):
    """A start that gets less far brings the unit's text back, byte for byte, and ends the loop; then one door tells."""
    before = read_unit_text(crashed.host, UNIT)
    change = Change(
        cause="gpu-memory/sampler-warmup",
        flag="--gpu-memory-utilization",
        value="0.40",
        reason="a bad idea",
        cost="all",
        check="none",
    )
    monkeypatch.setattr(remedies, "propose_change", lambda _run, _diagnosis: change)
    asyncio.run(crash.remedy(crashed))
    assert "0.40" in read_unit_text(crashed.host, UNIT)
    asyncio.run(crash.relaunch(crashed))
    result = crashed.results["relaunch"]
    assert result.state is State.CRITICAL
    assert "made it worse" in result.summary
    assert "rolled back: the unit reads as before" in result.summary
    assert result.cause == "gpu-memory/sampler-warmup"
    assert read_unit_text(crashed.host, UNIT) == before
    assert crashed.answers["n_remedies"] == 1
    capsys.readouterr()
    assert_one_door(tmp_path, capsys)


def assert_one_door(runs_dir, capsys):
    """`opslib investigate` finds the unit by itself, keeps its evidence, and says what comes next."""
    assert call(["investigate", "rehearsal", "--json", "--ticket", "INC-9", "--runs-dir", str(runs_dir)]) == 2
    document = json.loads(capsys.readouterr().out)
    (verdict,) = document["verdicts"]
    assert verdict["unit"] == UNIT
    assert verdict["cause"].startswith("gpu-memory/")
    assert {"confidence", "summary", "evidence", "remedies", "changed", "seen_before", "record"} <= set(verdict)
    assert verdict["next"].startswith("opslib run 30-launch -p host=rehearsal")
    assert "-p model=/" in verdict["next"]
    assert "-p ticket=INC-9" in verdict["next"]
    assert verdict["now"] == ""
    assert [entry.ticket for entry in list_records(runs_dir)][:1] == ["INC-9"]
    record = Path(verdict["record"])
    assert verify_record(record).alterations == ()
    assert verify_record(record).sealed_at is not None
    assert "gpu-memory/" in (record / "record.html").read_text()
    facts = json.loads((record / "record.json").read_text())
    assert {action["by"] for action in facts["actions"]} == {"headless"}
    assert call(["investigate", "rehearsal", UNIT, "--invocation", "0", "--runs-dir", str(runs_dir)]) == 2
    told = capsys.readouterr().out
    assert "Ways out:" in told
    assert "What changed since it last worked:" in told
    assert "Seen before:" in told


@pytest.mark.parametrize(
    ("failed", "code", "is_told"),
    [("f" * 32, 200, True), ("f" * 32, 503, False), ("", 200, False), (None, 200, False)],
)
def test_a_unit_that_serves_again_is_not_given_the_remedy_of_an_earlier_start(failed, code, is_told):
    """Whoever asks why a start failed, after it was cured, is told that the unit answers, and launches nothing."""
    survey = judge({"unit": {"health": {"status_code": code}}})
    own = survey.units[0].status.invocation_id
    start = own if failed is None else failed
    evidence = Evidence(unit=UNIT, invocation_id=start, gathered_at=datetime.now(UTC), survey=survey)
    assert own
    assert ("in a later start" in _serves_now(evidence)) == is_told
