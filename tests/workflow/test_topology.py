"""What a host has for an engine: wiring, holders, room."""

import pytest

from opslib.domain.facts.gpu import gpu_memory_command, gpu_processes_command
from opslib.domain.facts.topology import topology_command
from opslib.workflow.topology import gather_host_gpus, gather_room, room_notes
from tests.conftest import opened
from tests.domain.test_facts_topology import PCIE
from tests.fakes import FakeHost

GIB = 2**30
HOSTS = ("rehearsal", pytest.param("realhost", marks=pytest.mark.realhost))


def a_host():
    rows = "".join(
        f"{i}, NVIDIA H100, GPU-{i}, 81559, {used}, {81559 - used}, 580\n" for i, used in enumerate([40000, 0, 0, 0])
    )
    return FakeHost(
        {
            ("nvidia-smi", "topo"): PCIE,
            gpu_memory_command(): rows,
            gpu_processes_command(): "GPU-0, 77, 40000, /opt/vllm/bin/python\n",
            ("ps",): "     77    7260 llm   vllm-other.service\n",
        }
    )


def test_whoever_holds_a_gpu_is_named_and_a_free_quad_is_proposed():
    """PID, unit, user, age; what fits beside another unit is computed from what is free."""
    found = gather_host_gpus(a_host())
    assert found.holders[0].sentence == ("GPU 0: PID 77 (python, vllm-other.service, llm) holds 39.1 GiB, for 2h01m")
    assert found.propose(2, 60 * GIB) == (2, 3)
    assert found.wiring_of((2, 3)) == "PCIe (NODE), NUMA node 1"
    assert list(found.beside([0, 1], ["vllm-minimax"])) == [
        "GPU 0 is shared with vllm-other.service, which leaves 40.6 GiB of its budget"
    ]


@pytest.mark.parametrize(
    ("gpus", "own", "free_gib"),
    [
        ([0, 1], ["vllm-minimax"], 40.585),
        ([1, 2], ["vllm-minimax"], None),
        ([0, 1], ["vllm-other"], None),
        ([0], ["vllm-minimax", "vllm-other.service"], None),
    ],
)
def test_several_units_have_one_budget(gpus, own, free_gib):
    """What another unit holds of a GPU is not there to be planned with; the unit itself and the one it replaces end."""
    assert gather_host_gpus(a_host()).free_beside(gpus, own) == free_gib


@pytest.mark.parametrize("kind", HOSTS)
def test_hosts_answer_what_planning_asks(kind, request):
    """The wiring (127 without nvidia-smi), shared memory and disk; ps tells whose a process is."""
    machine = request.getfixturevalue("rehearsal" if kind == "rehearsal" else "debian")
    with opened(machine.settings) as host:
        assert host.run(topology_command()).exit_status in {0, 127}
        room = gather_room(host, "/")
        assert room.memory_available_bytes > 0
        assert room.disk_free_bytes["/"] >= 0
        assert host.run(("ps", "-o", "pid=,etimes=,user:32=,unit:96=", "-p", "1")).text.split()[0] == "1"


def test_what_the_host_lacks_is_said():
    """Shared memory for many ranks, RAM for offloaded weights, disk for compile caches."""
    room = gather_room(FakeHost({("df",): "1B-blocks Avail\n100 67108864\n"}), "/var/lib")
    notes = room_notes(room, n_ranks=4)
    assert notes[0].startswith("/dev/shm has 0.1 GiB free")
    assert notes[-1].startswith("/var/lib: 0.1 GiB free for compile caches")
    assert room_notes(room, n_ranks=1)[0].startswith("/var/lib")
