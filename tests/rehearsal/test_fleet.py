"""Many practice hosts in one process: apart from each other, named by an inventory, gone with the fleet."""

import time
from pathlib import Path

import pytest

from opslib.errors import BadParameter, HostUnreachable, UnknownName
from opslib.hosts import open_host
from opslib.hosts.inventory import load_inventory
from opslib.rehearsal import processes
from opslib.rehearsal.fleet import start_fleet
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.launch import start_unit, stop_unit
from tests.conftest import opened


def put_and_start(host):
    """A unit that sleeps."""
    host.write_file(f"{host.settings.unit_dir}/u.service", b"[Service]\nExecStart=/bin/sleep 99\n", sudo=True)
    start_unit(host, "u")
    while gather_unit_status(host, "u").active_state != "active":
        time.sleep(0.05)


@pytest.fixture(scope="module")
def fleet():
    """Three practice hosts, the second of which lacks a shard."""
    with start_fleet(3, {2: "missing-shard"}) as running:
        yield running


def test_hosts_are_apart(fleet):
    """Each host has its own port, key, loopback, unit directory and units; a unit of one isn't one of another's."""
    settings = [host.settings for host in fleet.hosts]
    for name in ("port", "identity_file", "unit_dir", "state_dir", "models_dir", "vllm"):
        assert len({getattr(each, name) for each in settings}) == 3, name
    assert len({host.loopback for host in fleet.hosts}) == 3
    with opened(settings[0]) as first, opened(settings[1]) as second:
        put_and_start(first)
        assert gather_unit_status(first, "u").active_state == "active"
        assert not gather_unit_status(second, "u").is_installed
        stop_unit(first, "u")


def test_inventory_names_the_hosts(fleet):
    """The hosts.toml holds every setting and the labels by which hosts are chosen."""
    inventory = load_inventory(fleet.inventory)
    assert tuple(inventory.hosts) == fleet.aliases == ("practice-1", "practice-2", "practice-3")
    assert [inventory.settings(host.settings.alias) for host in fleet.hosts] == [host.settings for host in fleet.hosts]
    assert inventory.settings("practice-2").labels == ("practice", "scenario=missing-shard")


def test_a_scenario_is_one_hosts_own(fleet):
    """What a scenario did to a checkpoint is seen on its host alone, though the others share files."""
    shards = [len(list(Path(host.settings.models_dir).glob("*/*.safetensors"))) for host in fleet.hosts]
    assert shards == [125, 124, 125]


def test_a_link_is_cut_by_a_drill(fleet):
    """`cut-link` takes one host off the network for so many seconds; the others answer on."""
    fleet.hosts[0].drill("cut-link", "0.5")
    with opened(fleet.hosts[2].settings) as other:
        assert other.run(("test", "-d", "/")).is_success
    cut = open_host(fleet.hosts[0].settings)
    with pytest.raises(HostUnreachable):
        cut.run(("test", "-d", "/"))
    cut.close()
    time.sleep(0.5)
    with opened(fleet.hosts[0].settings) as again:
        assert again.run(("test", "-d", "/")).is_success


def test_nothing_is_left():
    """With the fleet end its one process, what runs on its hosts, and its directory."""
    fleet = start_fleet(2)
    with opened(fleet.hosts[1].settings) as host:
        put_and_start(host)
    running = [pid for number in (1, 2) for pid in processes.members_below(f"rehearsal-{fleet.process_id}-{number}")]
    assert len(running) == 1
    fleet.close()
    fleet.close()
    assert not any(processes.is_alive(pid) for pid in (*running, fleet.process_id))
    assert not fleet.root.exists()


@pytest.mark.parametrize(
    ("n_hosts", "scenario_on", "error", "words"),
    [
        (0, {}, BadParameter, "from 1 to 100"),
        (101, {}, BadParameter, "from 1 to 100"),
        (3, {4: "healthy"}, BadParameter, "no host 4 among 3"),
        (3, {0: "healthy"}, BadParameter, "no host 0 among 3"),
        (3, {1: "helthy"}, UnknownName, "'healthy'"),
    ],
)
def test_what_cannot_be_is_refused(n_hosts, scenario_on, error, words):
    """A wrong number, place or scenario is refused before anything is started."""
    with pytest.raises(error, match=words):
        start_fleet(n_hosts, scenario_on)
