"""Planning from a command line, with a host for what it doesn't say."""

import pytest

from opslib.domain.facts.gpu import gpu_memory_command, gpu_processes_command
from opslib.errors import BadParameter
from opslib.workflow.offline_plan import GpuFigures, PlanInput, plan_offline
from tests.fakes import FakeHost
from tests.memory_cases import MINIMAX

MIB = 97249
LINE = ("--tensor-parallel-size", "2", "--max-model-len", "8192", "--max-num-seqs", "64")
TOPOLOGY = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNODE\tSYS\tSYS\t0-31\t0\nGPU1\tNODE\t X \tSYS\tSYS\t0-31\t0\n"
    "GPU2\tSYS\tSYS\t X \tNODE\t32-63\t1\nGPU3\tSYS\tSYS\tNODE\t X \t32-63\t1\n"
)


def a_host(used=(0, 0, 0, 0), processes=""):
    rows = "".join(f"{i}, NVIDIA H100, GPU-{i}, {MIB}, {held}, {MIB - held}, 580\n" for i, held in enumerate(used))
    answers = {
        gpu_memory_command(): rows,
        gpu_processes_command(): processes,
        ("nvidia-smi", "topo", "-m"): TOPOLOGY,
        ("ps",): " 77 7260 llm vllm-other.service\n",
        ("df",): "1B-blocks Avail\n500000000000 400000000000\n",
    }
    return FakeHost(answers)


def given(**more):
    return PlanInput(**{"flags": LINE, "engine_version": "0.17", "config": MINIMAX, "weights_bytes": 10**11, **more})


def test_the_host_gives_its_gpus_and_every_way_to_spread():
    """Two of four GPUs on one NUMA node, and a row per tensor x pipeline size."""
    found = plan_offline(a_host(), given()).document()
    assert found["verdict"] == "fits"
    assert found["gpus"]["proposed"] == [0, 1]
    assert found["gpus"]["wiring"] == "PCIe (NODE), NUMA node 0"
    assert [row["tensor_parallel_size"] * row["pipeline_parallel_size"] for row in found["parallel_table"]] == [
        1, 2, 2, 4, 4, 4
    ]  # fmt: skip


def test_gpus_that_others_hold_are_avoided():
    """The free pair goes before the first one; where all are held, what is free decides."""
    held = "GPU-0, 77, 60000, /opt/python\n"
    found = plan_offline(a_host(used=(60000, 0, 0, 0), processes=held), given()).document()
    assert found["gpus"]["proposed"] == [2, 3]
    assert found["verdict"] == "fits"
    everywhere = "".join(f"GPU-{i}, 77, 60000, /opt/python\n" for i in range(4))
    found = plan_offline(a_host(used=(60000,) * 4, processes=everywhere), given()).document()
    assert found["verdict"] == "gpu-memory/free-below-budget"
    assert found["gpus"]["holders"][0]["unit"] == "vllm-other.service"


def test_weights_larger_than_the_disk_are_refused():
    """500 GB can't hold a petabyte: the number is wrong."""
    with pytest.raises(BadParameter, match="larger than the disk"):
        plan_offline(a_host(), given(weights_bytes=10**15))


def test_more_ranks_than_gpus_are_refused():
    """By number."""
    with pytest.raises(BadParameter, match="8 ranks need as many GPUs, 4 are given"):
        plan_offline(a_host(), given(flags=("-tp", "8")))


def test_a_quantization_asked_for_on_plain_weights_packs_them_while_loading():
    """16-bit bytes on disk, a byte per weight on the GPU."""
    config = {key: value for key, value in MINIMAX.items() if key != "quantization_config"}
    gpu = GpuFigures(memory_gib=140.0)
    plain = given(config=config, weights_bytes=457_000_000_000, gpu=gpu, flags=("-tp", "4", "--quantization", "fp8"))
    assert plan_offline(None, plain).document()["per_gpu_gib"]["weights"] == pytest.approx(53.6, abs=1.5)
