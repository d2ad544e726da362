"""Every scenario, headless: `90-deploy` on the rehearsal host comes out as the scenario's own data says."""

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from opslib.app.headless import RunResult, run_headless
from opslib.app.scenario_table import scenario_table
from opslib.rehearsal.scenarios import Scenario, list_scenarios, load_scenario
from tests.rig.judgement import apart_from_load

PAGE = Path(__file__).parents[1] / "docs/scenarios.md"
AT_ONCE = 3  # most of a scenario's time is waiting
# where the outcome is decided before the benchmark
QUICK = {"concurrency_levels": [1, 4], "output_tokens": 16, "benchmark_repeats": 1}


def parameters_of(scenario: Scenario) -> dict[str, object]:
    """What the runbook is given: the scenario's own, consent, and a short benchmark where nothing happens in it."""
    figures = scenario.figures
    is_decided_later = figures["worker_dies_after_s"] or figures["serving"]["health_flap_period_s"]
    host = {"host": f"rehearsal:{scenario.name}", "consent": "given"}
    return {**({} if is_decided_later else QUICK), **scenario.parameters, **host}


class Runs:
    """Headless runs by scenario; those that the session asks for are begun at once, a few at a time."""

    def __init__(self, runs_dir: Path, names: list[str]) -> None:
        self._runs_dir = runs_dir
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._runs: dict[str, Future[RunResult]] = {}
        for name in names:
            self.begin(name)

    def begin(self, name: str) -> Future[RunResult]:
        if name not in self._runs:
            given = parameters_of(load_scenario(name))
            self._runs[name] = self._pool.submit(run_headless, "90-deploy", given, runs_dir=self._runs_dir / name)
        return self._runs[name]

    def of(self, name: str) -> tuple[RunResult, dict]:
        result = self.begin(name).result()
        return result, json.loads((result.folder / "record.json").read_text())

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """The runs of all scenarios that this session tests."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    begun = Runs(tmp_path_factory.mktemp("scenarios"), [item.callspec.params["name"] for item in items])
    yield begun
    begun.close()


def section(record, name):
    return next(entry for entry in record["sections"] if entry["name"] == name)


def timeline(record):
    return [seen["seen"] for seen in section(record, "launch")["value"]["timeline"]]


def told(record):
    """Everything that an operator reads: the outcome, each section's sentence, and the launch's timeline."""
    lines = [record["outcome"]["reason"], *(entry["summary"] for entry in record["sections"])]
    launched = any(entry["name"] == "launch" for entry in record["sections"])
    return [*lines, *(timeline(record) if launched else ())]


@pytest.mark.parametrize("name", list_scenarios())
def test_scenario_comes_out_as_it_says(runs, name):
    """Outcome, exit code, catalogue id and the sentence that an operator reads are those of the scenario's data."""
    expected = load_scenario(name).expected
    result, record = runs.of(name)
    assert result.exit_code == record["exit_code"]
    found = (*apart_from_load(record), record["cause"] or "none")
    assert found == (expected.state, expected.exit_code, expected.cause), told(record)
    assert any(re.search(expected.sentence, line) for line in told(record)), told(record)


def test_a_hang_is_a_stall_before_the_time_is_up(runs):
    """A process that lives and says nothing is called stalled long before the launch's time is over."""
    _, record = runs.of("nccl-hang")
    assert any(line.startswith("stalled: no news for") for line in timeline(record))
    assert section(record, "launch")["value"]["state"] == "timed_out"


def test_a_wait_for_gpu_memory_ends_and_the_launch_goes_on(runs):
    """What is waited for is said while it lasts; then the same start becomes ready."""
    _, record = runs.of("guard-still-waiting")
    seen = timeline(record)
    waiting = next(at for at, line in enumerate(seen) if line.startswith("activating, waiting for GPU memory"))
    assert any("the GPU guard waits no longer" in line for line in seen[waiting:])
    assert section(record, "launch")["value"]["state"] == "ready"


def test_a_lost_link_says_nothing_about_the_unit(runs):
    """While nothing is heard the launch is unreachable, never failed; afterwards the same invocation is ready."""
    _, record = runs.of("ssh-drop")
    value = section(record, "launch")["value"]
    assert value["n_links_lost"] == 1
    assert any(line.startswith("unreachable") for line in timeline(record))
    assert (value["state"], value["n_restarts"], value["crash"]) == ("ready", 0, None)


def test_the_page_holds_the_table():
    """docs/scenarios.md shows the scenarios' data, all of it."""
    assert scenario_table() in PAGE.read_text()
