"""What systemd leaves in files of a unit's starts, and of reading all units anew."""

import os

from opslib.onhost.unit_traces import traces_of


def test_a_start_and_a_reload_leave_traces(tmp_path):
    """Another invocation differs, units that were read anew differ, and nothing else does."""
    units = tmp_path / "units"
    units.mkdir()
    (tmp_path / "systemd-units-load").touch()
    link = units / "invocation:vllm.service"
    link.symlink_to("1f" * 16)
    seen = [traces_of("vllm.service", run=str(tmp_path))]
    assert seen[0][0] == "1f" * 16
    assert traces_of("vllm.service", run=str(tmp_path)) == seen[0]
    link.unlink()
    link.symlink_to("2e" * 16)
    seen.append(traces_of("vllm.service", run=str(tmp_path)))
    os.utime(tmp_path / "systemd-units-load", ns=(1, 1))
    seen.append(traces_of("vllm.service", run=str(tmp_path)))
    assert len(set(seen)) == 3


def test_without_systemd_there_is_no_trace(tmp_path):
    """A unit that is unknown there, and a host without these files, name no invocation."""
    assert traces_of("vllm.service", run=str(tmp_path))[0] == ""
    assert traces_of("vllm.service", run=str(tmp_path / "none")) == ("", "", "")
