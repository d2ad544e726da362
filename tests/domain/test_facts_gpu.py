"""What nvidia-smi says."""

import pytest

from opslib.domain.facts.gpu import MIB, parse_gpu_memory, parse_gpu_processes
from opslib.errors import UnexpectedAnswer

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
TWO = f"1, {NAME}, GPU-b, 97887, 58880, 38370, 580.95.05\n0, {NAME}, GPU-a, 97887, 0, 97250, 580.95.05\n"


def test_gpus_come_in_the_order_of_their_indices_with_sizes_in_bytes():
    """nvidia-smi counts in MiB."""
    first, second = parse_gpu_memory(TWO)
    assert (first.index, first.uuid, first.memory_free_bytes) == (0, "GPU-a", 97250 * MIB)
    assert second.memory_used_bytes == 58880 * MIB


def test_usable_memory_leaves_the_drivers_reserve_out():
    """CUDA's total is used + free, a little less than nvidia-smi's total."""
    first, second = parse_gpu_memory(TWO)
    assert first.memory_usable_bytes == second.memory_usable_bytes == 97250 * MIB


@pytest.mark.parametrize("text", ["0, x, y\n", "0, NVIDIA GB10, GPU-a, [N/A], [N/A], [N/A], 580.95.05\n"])
def test_a_row_that_cannot_be_read_is_an_unexpected_answer(text):
    """Unified memory has no figure of its own; none is made up."""
    with pytest.raises(UnexpectedAnswer):
        parse_gpu_memory(text)


def test_processes_name_who_holds_memory():
    """One row per process and GPU; a name may hold a comma; no rows is nobody."""
    rows = parse_gpu_processes("GPU-a, 4711, 58880, VLLM::Worker_TP0\nGPU-b, 12, [N/A], a, b\n")
    assert (rows[0].pid, rows[0].name, rows[0].memory_used_bytes) == (4711, "VLLM::Worker_TP0", 58880 * MIB)
    assert (rows[1].name, rows[1].memory_used_bytes) == ("a, b", None)
    assert parse_gpu_processes("\n") == ()
