"""Predictions against what launches did, and what that teaches."""

from opslib.domain.engine_figures import read_figures
from opslib.domain.memory import plan_memory
from opslib.domain.memory_ledger import LedgerEntry, actual_figures, calibrate, predicted_figures
from tests.memory_cases import GIB, story

LINES = [
    "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_model_runner.py:1] Model loading took 57.5 GiB memory and 38.0 seconds",
    "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_worker.py:1] Available KV cache memory: 25.32 GiB",
    "(EngineCore pid=1) INFO 11-29 18:00:00 [kv_cache_utils.py:1] GPU KV cache size: 428,208 tokens",
    "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_model_runner.py:1] Graph capturing finished in 5 secs, took 2.0 GiB",
]
CPU_LINES = [
    "(EngineCore pid=1) INFO 11-29 18:00:00 [kv_cache_utils.py:1] GPU KV cache size: 26,208 tokens",
    "(EngineCore pid=1) INFO 11-29 18:00:00 [x.py:1] Maximum concurrency for 1,024 tokens per request: 25.59x",
]


def entry(record, actual, predicted=None, **more):
    plan = plan_memory(**story()).model_dump(mode="json")
    predicted = predicted_figures(plan) if predicted is None else predicted
    return LedgerEntry(record=record, host="gpu7", model="m", predicted=predicted, actual=actual, **more)


def test_a_launch_is_set_beside_its_plan():
    """Weights, KV memory, tokens, graphs; the overhead is what the budget leaves unexplained."""
    actual = actual_figures(read_figures(LINES), budget_gib=90.22, ready_s=75.0)
    assert actual["overhead"] == round(90.22 - 57.5 - 25.32, 4)
    rows = {name: (predicted, found, off) for name, predicted, found, off in entry("one", actual).rows()}
    assert rows["weights"][1] == 57.5
    assert rows["kv_cache_tokens"][1] == 428208
    assert rows["ready_s"][0] is None
    assert abs(rows["cuda_graphs"][2]) < 0.01


def test_two_launches_that_agree_calibrate_the_next_plan():
    """The weights' difference is learnt; the next plan expects 57.5 GiB, in a band of their spread."""
    actual = actual_figures(read_figures(LINES), budget_gib=90.2215)
    learnt = calibrate([entry("one", actual), entry("two", actual)], model="m")
    assert learnt.n_launches == 2
    plan = plan_memory(**story(), calibration=learnt)
    weights, cache = plan.term("weights"), plan.term("kv_cache")
    assert abs(weights.expected_bytes / GIB - 57.5) < 0.01
    assert (weights.high_bytes - weights.low_bytes) / GIB < 0.25
    assert abs(cache.expected_bytes / GIB - 25.32) < 0.05


def test_one_launch_or_two_that_differ_teach_nothing():
    """And neither do launches of another model."""
    actual = actual_figures(read_figures(LINES[:1]))
    assert calibrate([entry("one", actual)], model="m") is None
    assert calibrate([entry("one", {"weights": 57.5}), entry("two", {"weights": 50.0})], model="m") is None
    assert calibrate([entry("one", actual), entry("two", actual)], model="other") is None


def test_the_overhead_counts_only_from_launches_with_as_many_sequences():
    """It is mostly the sampler's."""
    entries = [entry(name, {"overhead": 7.0}, {"overhead": 8.0}, max_num_seqs=256) for name in ("one", "two")]
    assert calibrate(entries, model="m", max_num_seqs=1024) is None
    assert calibrate(entries, model="m", max_num_seqs=256).overhead_gib == -1.0


def test_an_engine_on_the_cpu_has_figures_too():
    """Tokens and concurrency, nothing predicted."""
    found = entry("cpu", actual_figures(read_figures(CPU_LINES)), {})
    assert found.rows() == [("kv_cache_tokens", None, 26208.0, None), ("max_concurrency", None, 25.59, None)]
