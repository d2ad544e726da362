"""Small questions to a host."""

import pytest

from opslib.errors import UnexpectedAnswer
from opslib.workflow.facts import gather_gpus, gather_identity, gather_listeners, gather_unit_status
from tests.fakes import FakeHost, answered


def test_an_identity_is_one_round_trip():
    """The on-host program answers everything at once."""
    assert gather_identity(FakeHost()).kernel


def test_a_host_without_nvidia_smi_has_no_gpus():
    """No driver is an answer, not a failure."""
    assert gather_gpus(FakeHost()) == ()


def test_a_driver_that_fails_is_could_not_find_out():
    """nvidia-smi that can't talk to its driver says nothing about the GPUs."""
    failed = answered(
        exit_status=9, stdout="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )
    with pytest.raises(UnexpectedAnswer, match="couldn't communicate"):
        gather_gpus(FakeHost({("nvidia-smi",): failed}))


def test_unit_and_listeners_are_read():
    """Each verb sends its command and reads the answer."""
    host = FakeHost({("env", "TZ=UTC", "systemctl", "show"): "LoadState=loaded\nActiveState=active\n", ("ss",): ""})
    assert gather_unit_status(host, "vllm").is_installed
    assert gather_listeners(host, 8000) == ()
