"""GPU memory before a launch: the sums, the bands, the verdict and the remedy."""

import pytest

from opslib.domain.engine_figures import read_figures
from opslib.domain.memory import plan_memory
from opslib.domain.memory_checks import largest_fitting
from opslib.domain.memory_observed import observe_launch
from opslib.domain.memory_remedy import solve_remedies
from opslib.domain.memory_situation import Situation
from tests.memory_cases import GIB, VARIANTS, observed, story

NAMES = [variant["name"] for variant in VARIANTS]


def in_gib(term):
    return term.low_bytes / GIB, term.expected_bytes / GIB, term.high_bytes / GIB


def smallest_remedy(cause, *, observed=None, **inputs):
    """The first remedy of a situation, None where there is none."""
    return next(iter(solve_remedies(Situation.of(**inputs, observed=observed), cause)), None)


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_with_a_launch_observed_the_answer_is_the_hand_computed_one(variant):
    """Observed figures leave no doubt: left and needed agree to 0.05 GiB, and the largest fitting value is exact."""
    seen, inputs = observed(**variant), story(**variant)
    plan = plan_memory(**inputs, observed=seen)
    assert plan.state == ("ok" if variant["fits"] else "critical")
    assert plan.cause == (None if variant["fits"] else "gpu-memory/sampler-warmup")
    assert in_gib(plan.term("sampler_warmup_needed"))[1] == pytest.approx(variant["needed_gib"], abs=0.05)
    assert in_gib(plan.term("sampler_warmup_left"))[1] == pytest.approx(variant["left_gib"], abs=0.05)
    assert largest_fitting(Situation.of(**inputs, observed=seen)) == variant["max_num_seqs"]


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_without_a_launch_the_bands_hold_the_truth(variant):
    """Estimates don't claim more than they know, and the safe value is safe by the true figures."""
    plan = plan_memory(**story(**variant))
    assert plan.state == variant["estimated_state"]
    assert plan.safe_max_num_seqs == variant["estimated_max_num_seqs"]
    low, _, high = in_gib(plan.term("sampler_warmup_left"))
    assert low <= variant["left_gib"] <= high
    low, _, high = in_gib(plan.term("weights"))
    assert low <= 57.5 <= high


def test_the_story_is_predicted_before_the_launch():
    """One sentence with needed and left in GiB, and what would be safe; the same model at 0.90 fits."""
    plan = plan_memory(**story())
    assert (plan.state.exit_code, plan.verdict) == (2, "gpu-memory/sampler-warmup")
    assert plan.summary == (
        "does not fit: the sampler's second warm-up with 1024 dummy requests needs 7.40 GiB, 6.46 GiB are left for it; "
        "--max-num-seqs 256 would be safe"
    )
    assert plan.flags["--max-num-seqs"].origin == "default of vLLM 0.15 for GPUs >= 70 GiB"
    assert plan_memory(**story(utilization=0.90)).verdict == "fits"


def test_the_storys_kv_cache_is_what_its_journal_said():
    """94.97 x 0.95 - 57.5 - 7.40 = 25.32."""
    plan = plan_memory(**story(), observed=observed())
    assert in_gib(plan.term("kv_cache"))[1] == pytest.approx(25.32, abs=0.01)


def test_the_remedy_is_solved_for_and_says_the_sums():
    """--max-num-seqs 256, because 512 needs 3.70 GiB of 3.55."""
    remedy = smallest_remedy("gpu-memory/sampler-warmup", **story(), observed=observed())
    assert (remedy.flag, remedy.value) == ("--max-num-seqs", "256")
    assert "needs 7.40 GiB (9.7 x 1024 x 200064 x 4 bytes), 6.45 GiB are left" in remedy.reason
    assert "with 256 it needs 1.85 GiB and 3.55 GiB are left" in remedy.reason
    assert remedy.cost.startswith(
        "at most 256 requests run at once instead of 1024; the KV cache goes from 25.32 to 28.22"
    )


def test_what_failed_is_never_proposed_again():
    """A launch that died with 256 is answered with less, whatever the estimate says."""
    inputs = story(more="--max-num-seqs 256")
    seen = observed().model_copy(update={"max_num_seqs": 256, "free_at_failure_gib": None})
    assert smallest_remedy("gpu-memory/sampler-warmup", **inputs, observed=seen).value == "128"


def test_a_failure_in_the_middle_of_the_sampler_widens_what_is_known():
    """Where less was free than was asked for, the sampler already held a part: the remedy stays on the safe side."""
    seen = observed().model_copy(update={"free_at_failure_gib": 2.1, "tried_to_allocate_gib": 2.29})
    inputs = story()
    plan = plan_memory(**inputs, observed=seen)
    low, _, high = in_gib(plan.term("context_and_fragmentation"))
    assert low <= 3.7 <= high
    assert plan.safe_max_num_seqs <= 256


def test_too_small_a_cache_is_answered_with_the_longest_request_that_fits():
    """62 layers x 2 x 2 heads x 128 x 2 bytes = 63,488 bytes per token: 6.5 GiB hold 109,929 tokens, 107 x 1024 of them."""
    inputs = story()
    seen = observed().model_copy(update={"available_kv_gib": 6.5})
    remedy = smallest_remedy("gpu-memory/kv-cache-below-max-model-len", **inputs, observed=seen)
    assert (remedy.flag, remedy.value) == ("--max-model-len", str(107 * 1024))
    assert remedy.reason.startswith(
        "one request of 131072 tokens needs 7.75 GiB of KV cache and 6.50 GiB are available"
    )


def test_no_cache_at_all_is_answered_with_the_smallest_share_that_surely_fits():
    """At 0.60 the budget is 56.98 GiB, less than the weights."""
    inputs = story(utilization=0.60)
    plan = plan_memory(**inputs)
    assert (plan.state, plan.cause) == ("critical", "gpu-memory/no-kv-cache-memory")
    remedy = smallest_remedy("gpu-memory/no-kv-cache-memory", **inputs)
    assert (remedy.flag, remedy.value) == ("--gpu-memory-utilization", "0.78")
    assert plan_memory(**story(utilization=0.78)).state == "ok"
    assert plan_memory(**story(utilization=0.77)).state == "warning"


def test_a_cause_that_memory_does_not_answer_has_no_remedy_here():
    """Other causes have other owners."""
    assert smallest_remedy("network/port-in-use", **story()) is None


def test_a_cpu_engine_plans_no_gpu_memory():
    """Nothing to plan is ok, and says so."""
    plan = plan_memory(**{**story(), "gpu_total_bytes": None})
    assert (plan.state, plan.terms) == ("ok", ())
    assert "no GPU memory" in plan.summary


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ("--tensor-parallel-size 5", "model/parallel-size-not-divisible"),
        ("--max-model-len 200000", "model/max-model-len-above-limit"),
        ("--gpu-memory-utilization 0.995", "gpu-memory/free-below-budget"),
        ("--tensor-parallel-size 1", "gpu-memory/weights"),
    ],
)
def test_what_would_stop_the_launch_first_is_named(more, cause):
    """Catalogue ids, in the order in which vLLM would fail."""
    plan = plan_memory(**story(more=more))
    assert (plan.state, plan.cause) == ("critical", cause)


@pytest.mark.parametrize("sequences", [1, 16, 128, 256, 512, 1024])
def test_more_sequences_never_leave_more_cache(sequences):
    """And never more headroom."""
    fewer = plan_memory(**story(more=f"--max-num-seqs {sequences}"))
    more = plan_memory(**story(more=f"--max-num-seqs {sequences * 2}"))
    for name in ("kv_cache", "headroom"):
        assert all(a >= b for a, b in zip(in_gib(fewer.term(name)), in_gib(more.term(name)), strict=True))


def test_a_journals_figures_become_what_the_planner_takes():
    """The lines that vLLM and PyTorch print for the story give its observed figures, tied to the flags of that start."""
    lines = [
        "(APIServer pid=1) INFO 11-29 18:00:00 [utils.py:1] non-default args: {'model': '/m', 'gpu_memory_utilization': 0.95}",
        "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_model_runner.py:1] Model loading took 57.5 GiB memory and 38.0 seconds",
        "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_worker.py:1] Available KV cache memory: 25.32 GiB",
        "(Worker_TP0 pid=2) INFO 11-29 18:00:00 [gpu_model_runner.py:1] Graph capturing finished in 5 secs, took 2.0 GiB",
        (
            "(Worker_TP0 pid=2) ERROR 11-29 18:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
            "2.29 GiB. GPU 0 has a total capacity of 94.97 GiB of which 6.45 GiB is free. Including"
        ),
        (
            "(Worker_TP0 pid=2) ERROR 11-29 18:00:00 [x.py:1] RuntimeError: CUDA out of memory occurred when warming up sampler "
            "with 1024 dummy requests."
        ),
    ]
    seen = observe_launch(read_figures(lines))
    assert seen.model_dump() == {**observed().model_dump(), "gpu_memory_utilization": 0.95}
    assert observe_launch(read_figures([])).weights_gib is None
