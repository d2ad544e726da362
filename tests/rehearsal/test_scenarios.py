"""Scenarios: data that loads, and files that make a host."""

import json
import re

import pytest

from opslib.domain.diagnosis_catalogue import list_causes
from opslib.domain.parameters import validate_parameters
from opslib.errors import UnknownName
from opslib.rehearsal.layout import change_file
from opslib.rehearsal.scenarios import Before, list_scenarios, load_scenario
from opslib.rehearsal.standin_install import standin_files


@pytest.mark.parametrize("name", list_scenarios())
def test_every_scenario_loads(name):
    """A scenario is whole: sentence, figures of the story, and an expected end that agrees with itself."""
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.sentence.endswith(".")
    assert scenario.figures["weights_gib"] == 57.5
    expected = scenario.expected
    assert expected.exit_code == expected.state.exit_code
    assert expected.cause != "none" or expected.exit_code < 2
    assert expected.cause in {"none", *(cause.id for cause in list_causes())}
    assert re.compile(expected.sentence)
    assert validate_parameters("90-deploy", {"host": f"rehearsal:{name}", **scenario.parameters})
    assert all(re.compile(fault.when) for fault in scenario.during)


def test_load_takes_seventy_five_seconds():
    """The story's load is 75 seconds by its own log, 5 by the clock."""
    scenario = load_scenario("sampler-oom")
    assert sum(scenario.figures["seconds"].values()) == 75
    assert scenario.clock_factor == 15


def test_unknown_scenario_offers_the_nearest():
    """A misspelt name is refused with the name that was meant."""
    with pytest.raises(UnknownName, match="sampler-oom"):
        load_scenario("sampler-oon")


def test_files_to_install():
    """Everything lies under the prefix; programs are executable; the settings say where the ledger is."""
    files = standin_files(load_scenario("healthy"), "/opt/elsewhere", python="/usr/bin/python3.8")
    assert all(path.startswith("/opt/elsewhere/") for path in files)
    content, mode = files["/opt/elsewhere/bin/vllm"]
    assert content.startswith(b"#!/usr/bin/python3.8\n")
    assert mode == 0o755
    settings = json.loads(files["/opt/elsewhere/share/rehearsal.json"][0])
    assert settings["ledger_dir"] == "/opt/elsewhere/var/ledger"
    assert settings["engine"]["sampler_multiplier"] == 4.0
    assert "/opt/elsewhere/lib/opslib/rehearsal/standin/engine_core.py" in files


def test_default_prefix_keeps_the_ledger_where_all_users_write():
    """Under /opt/standin the ledger is in /dev/shm: writable for the unit's user, empty after a reboot."""
    files = standin_files(load_scenario("healthy"))
    assert json.loads(files["/opt/standin/share/rehearsal.json"][0])["ledger_dir"].startswith("/dev/shm/")


def test_a_turned_bit_leaves_size_and_time(tmp_path):
    """A flipped bit is one bit: nothing but the bytes can tell."""
    path = tmp_path / "shard"
    path.write_bytes(bytes(10))
    before = path.stat()
    change_file(tmp_path, Before(kind="flip_bit", path="shard", at_byte=4))
    assert path.read_bytes() == bytes(4) + b"\x01" + bytes(5)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
