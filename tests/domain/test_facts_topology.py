"""How GPUs are wired, and which belong together."""

import pytest

from opslib.domain.facts.topology import Topology, parse_topology

PCIE = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPHB\tSYS\tSYS\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU1\tPHB\t X \tSYS\tSYS\tNODE\t0-15,32-47\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNODE\tSYS\t16-31,48-63\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNODE\t X \tSYS\t16-31,48-63\t1\t\tN/A\n"
    "NIC0\tNODE\tNODE\tSYS\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)
BLANKS = """        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV12    NODE    0-31            0
GPU1    NV12     X      NODE    0-31            0
mlx5_0  NODE    NODE     X
"""


def test_the_matrix_is_read_with_its_numa_nodes():
    """Tabs, colours and network cards included."""
    found = parse_topology(PCIE)
    assert found.links[(0, 1)] == "PHB"
    assert found.links[(2, 3)] == "NODE"
    assert found.numa_nodes == {0: 0, 1: 0, 2: 1, 3: 1}
    assert found.worst_link([0, 1, 2]) == "SYS"


def test_columns_kept_apart_by_blanks_are_read_as_well():
    """As some tools keep them."""
    found = parse_topology(BLANKS)
    assert (found.worst_link([0, 1]), found.numa_nodes) == ("NV12", {0: 0, 1: 0})


@pytest.mark.parametrize("text", ["", "Failed to initialize NVML", "GPU0\t X \n"])
def test_what_is_no_matrix_knows_nothing(text):
    """And every choice is by index then."""
    assert parse_topology(text) == Topology()
    assert parse_topology(text).choose(2, {0: 1, 1: 1, 2: 1}) == (0, 1)


def test_a_set_on_one_node_goes_before_one_that_spans_two():
    """Enough free memory counts first, then the node, then the link."""
    found = parse_topology(PCIE)
    free = {0: 10, 1: 90, 2: 90, 3: 90}
    assert found.choose(2, free, 80) == (2, 3)
    assert found.choose(2, dict.fromkeys(range(4), 90), 80) == (0, 1)
    assert found.choose(5, free) == ()
