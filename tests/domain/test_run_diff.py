"""Two records against each other: what differs, and an explanation only where the table has one."""

import json
import tomllib
from importlib import resources

import pytest

from opslib.domain.run_diff import diff_runs
from opslib.domain.run_facts import KeptRun, figures_of
from opslib.domain.states import State
from tests.domain.run_records import cured_run, failed_run, record, section, snapshot

DATA = resources.files("opslib.domain.data")


def level(concurrency: int, throughput: float) -> dict[str, object]:
    latencies = {name: {"p50": 10.0, "p99": 20.0} for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms")}
    return {"concurrency": concurrency, "output_throughput": throughput, "request_throughput": 1.0, **latencies}


def served(*flags: str, throughput: float = 1000.0, kv_tokens: int = 400_000, **versions: str) -> KeptRun:
    start = {"state": "ready", "elapsed_s": 75.0, "timeline": [{"at_s": 1}], "n_restarts": 0}
    start |= {"engine": {"kv_cache_tokens": kv_tokens}, "snapshot": snapshot(*flags, **versions)}
    levels = [level(64, 500.0), level(512, throughput)]
    sections = [
        section("launch", State.OK, 1, value=start),
        section("benchmark", State.OK, 9, value={"levels": levels}),
    ]
    return KeptRun(name="r", record=record(0, *sections))


def explained(diff) -> dict[str, tuple[str, ...]]:
    return {figure.figure: figure.may_explain for figure in diff.figures if figure.is_notable}


def test_a_run_is_like_itself():
    """Nothing differs between a record and itself."""
    assert diff_runs(served(), served()).is_same


def test_chance_is_no_difference():
    """A figure under load that moved less than two runs of one benchmark do is not notable; a counted one is."""
    diff = diff_runs(served(), served(throughput=1030.0, kv_tokens=404_001))
    assert list(explained(diff)) == ["kv_cache_tokens"]
    assert not diff.is_same


def test_a_change_may_explain_what_the_table_says():
    """A flag explains the figures of its row, with the reason, and no others."""
    diff = diff_runs(served(), served("--gpu-memory-utilization", "0.9", kv_tokens=300_000, throughput=500.0))
    assert [entry.what for entry in diff.flags] == ["--gpu-memory-utilization"]
    found = explained(diff)
    assert found["kv_cache_tokens"][0].startswith("--gpu-memory-utilization absent -> 0.9: the KV cache is what")
    assert found["output_throughput@512"] == ()


def test_a_limit_explains_only_the_levels_above_it():
    """`--max-num-seqs` bears on levels with more requests at once than it lets in."""
    before, after = served(), served("--max-num-seqs", "256", throughput=500.0)
    levels = after.record.sections[1].value["levels"]
    levels[0]["output_throughput"] = 100.0
    found = explained(diff_runs(before, after))
    assert found["output_throughput@64"] == ()
    assert found["output_throughput@512"] == ("--max-num-seqs absent -> 256: requests beyond it wait for their turn",)


def test_nothing_changed_explains_nothing():
    """A figure that moved while nothing was changed has no explanation."""
    assert set(explained(diff_runs(served(), served(throughput=100.0))).values()) == {()}


def test_versions_and_verdicts():
    """Versions that both know are compared, and how the sections came out."""
    diff = diff_runs(served(engine_version="0.15.1"), served(engine_version="0.16.0", driver_version=""))
    assert [(entry.what, entry.a, entry.b) for entry in diff.versions] == [("engine", "0.15.1", "0.16.0")]
    verdicts = {entry.what: (entry.a, entry.b) for entry in diff_runs(failed_run(), cured_run()).verdicts}
    assert verdicts["outcome"] == ("critical", "ok")
    assert verdicts["cured by"] == ("-", "--max-num-seqs 256")


def test_a_parameter_that_is_a_flag_is_told_once():
    """A parameter is not told beside the flag that it sets, nor one that only one side's version had."""
    a, b = served(), served("--max-num-seqs", "256")
    told = [("max_num_seqs", None), ("port", 8000)], [("max_num_seqs", 256), ("port", 8001), ("new", 1)]
    runs = [
        run.model_copy(update={"record": run.record.model_copy(update={"parameters": dict(parameters)})})
        for run, parameters in zip((a, b), told, strict=True)
    ]
    diff = diff_runs(*runs)
    assert [entry.what for entry in diff.parameters] == ["port"]


EFFECTS = tomllib.loads(DATA.joinpath("flag_figures.toml").read_text())["effect"]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect["what"])
def test_the_table_speaks_of_what_there_is(effect):
    """Every row names a flag of vLLM, a version or a parameter of ours, figures that records have, and a reason."""
    engine = {"weights_bytes": 1, "available_kv_cache_bytes": 1, "max_concurrency": 1.0, "cuda_graphs_bytes": 1}
    run = served()
    run.record.sections[0].value["engine"].update(engine)
    known = {name.partition("@")[0] for name in figures_of(run.record)}
    assert set(effect["figures"]) <= known
    assert effect["why"]
    flags = json.loads(DATA.joinpath("vllm_flags.json").read_text())
    others = {"engine", "GPU driver", "model commit", "host", "model", "input_tokens", "output_tokens"}
    assert effect["what"] in others or effect["what"].removeprefix("--no-").removeprefix("--") in json.dumps(flags)
