"""Planning an engine's memory for a host."""

import pytest

from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.states import State
from opslib.errors import BadParameter, UnexpectedAnswer
from opslib.workflow.plan import gather_engine_version, plan_for_host
from tests.fakes import FakeHost, answered
from tests.memory_cases import MINIMAX, observed

FLAGS = [
    "--tensor-parallel-size",
    "4",
    "--gpu-memory-utilization",
    "0.95",
    "--max-model-len",
    "131072",
    "--port",
    "8000",
]
REPORT = CheckpointReport(
    path="/srv/models/minimax-m2-230b-fp8",
    level="extents",
    state=State.OK,
    summary="",
    bytes_by_dtype={"F8_E4M3": 227_410_968_576, "BF16": 2_460_043_264, "F32": 250_618_880},
    bytes_by_part={"norm": 1_656_832, "router": 195_098_624},
    config=MINIMAX,
)


def a_host(used_mib=0, n_gpus=8):
    rows = [
        f"{index}, NVIDIA RTX PRO 6000, GPU-{index}, 97249, {used_mib}, {97249 - used_mib}, 580.95\n"
        for index in range(n_gpus)
    ]
    return FakeHost({("nvidia-smi",): "".join(rows), ("/opt/vllm/bin/vllm", "--version"): "0.15.1\n"})


def test_the_story_is_planned_from_what_the_host_says():
    """GPUs, version, headers and flags give the verdict, the safe value and what the guard asks for."""
    plan = plan_for_host(a_host(), REPORT, FLAGS, gpus=[0, 1, 2, 3])
    assert (plan.memory.state, plan.memory.safe_max_num_seqs, plan.engine_version) == ("critical", 256, "0.15.1")
    assert [gpu.index for gpu in plan.gpus] == [0, 1, 2, 3]
    assert plan.required_free_gib == 90.8
    assert plan.memory.notes == ()


def test_the_plan_gives_the_remedy_for_a_launch_that_failed():
    """The same inputs, narrowed by the journal's figures."""
    plan = plan_for_host(a_host(), REPORT, FLAGS, gpus=[0, 1, 2, 3])
    assert plan.remedy("gpu-memory/sampler-warmup", observed()).value == "256"


def test_memory_held_now_is_a_note():
    """The guard will wait for it; the plan itself doesn't change."""
    plan = plan_for_host(a_host(used_mib=40000), REPORT, FLAGS, gpus=[0, 1, 2, 3])
    assert "the unit's guard waits for it" in plan.memory.notes[0]
    assert plan.memory.verdict == "gpu-memory/sampler-warmup"


def test_too_few_gpus_do_not_start():
    """Four ranks need four GPUs."""
    plan = plan_for_host(a_host(), REPORT, FLAGS, gpus=[0, 1])
    assert (plan.memory.state, plan.memory.summary) == (
        "critical",
        "does not start: 4 ranks need as many GPUs, 2 are given",
    )


def test_a_gpu_that_the_host_has_not_got_is_a_bad_parameter():
    """Said with what there is."""
    with pytest.raises(BadParameter, match="no GPU 9; it has 0, 1"):
        plan_for_host(a_host(n_gpus=2), REPORT, FLAGS, gpus=[0, 9])


def test_an_unknown_flag_does_not_start():
    """The engine would exit at once."""
    plan = plan_for_host(a_host(), REPORT, [*FLAGS, "--max-numseqs", "256"], gpus=[0, 1, 2, 3])
    assert plan.memory.state == "critical"
    assert plan.memory.summary.startswith("vllm serve has no flag --max-numseqs; did you mean --max-num-seqs?")


def test_no_gpus_is_a_cpu_engine():
    """Nothing is asked of nvidia-smi."""
    host = a_host()
    plan = plan_for_host(host, REPORT, FLAGS, engine_version="0.32.0")
    assert (plan.memory.state, plan.required_free_gib, host.commands) == ("ok", 0.0, [])
    assert plan.remedy("gpu-memory/sampler-warmup") is None


def test_a_checkpoint_without_config_cannot_be_planned():
    """Not knowing the model is not a verdict."""
    with pytest.raises(UnexpectedAnswer, match=r"no usable config\.json"):
        plan_for_host(a_host(), REPORT.model_copy(update={"config": None}), FLAGS, engine_version="0.15")


def test_an_engine_that_does_not_answer_has_no_version():
    """The plan then takes the newest known rules, and says so in each origin."""
    assert gather_engine_version(FakeHost({("/opt/vllm/bin/vllm",): answered(exit_status=1)})) == ""
