"""A left-over engine: found with its proof, ended alone, and only while it is the same process."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opslib.domain.facts.gpu import GpuProcess
from opslib.domain.facts.systemd import parse_unit_show, show_unit_command
from opslib.domain.host import HostSettings
from opslib.domain.states import State
from opslib.errors import Refused
from opslib.hosts.local import LocalHost
from opslib.workflow.install import apply_plan
from opslib.workflow.orphan import find_orphans, plan_end
from tests.fakes import FakeHost

PROCESS = GpuProcess(gpu_uuid="GPU-1", pid=77, name="VLLM::EngineCor", memory_used_bytes=40 << 30)
STAT = "77 (VLLM::EngineCor) S " + " ".join(str(number) for number in range(4, 40))
SHOW = "LoadState=loaded\nActiveState={}\nSubState=x\nInvocationID=" + "b" * 32 + "\nMainPID={}\n"


@pytest.fixture
def host():
    host = FakeHost({show_unit_command("vllm.service"): SHOW.format("failed", 0), ("ps",): " 50 1\n 77 1\n"})
    host.files = {
        "/proc/77/cgroup": b"0::/system.slice/vllm.service\n",
        "/proc/77/cmdline": b"VLLM::EngineCore\0",
        "/proc/77/stat": STAT.encode(),
        "/proc/77/environ": b"HF_TOKEN=s3cr3t\0INVOCATION_ID=" + b"a" * 32 + b"\0",
    }
    return host


def test_of_a_dead_unit(host):
    """A failed unit owns nothing; the proof says so, and the environment's secrets stay unread."""
    ((holder, proof),) = find_orphans(host, (PROCESS,))
    assert proof == "VLLM::EngineCor (pid 77) is of vllm.service, which is failed"
    assert "s3cr3t" not in holder.model_dump_json()


def test_of_an_earlier_start(host):
    """A live unit that runs another start doesn't own what an earlier one left."""
    host.answers[show_unit_command("vllm.service")] = SHOW.format("active", 50)
    ((_, proof),) = find_orphans(host, (PROCESS,))
    assert "start aaaaaaaa" in proof
    assert "start bbbbbbbb" in proof


def test_of_the_running_start(host):
    """A descendant of the live unit's main process is nobody's orphan."""
    host.answers[show_unit_command("vllm.service")] = SHOW.format("active", 50)
    host.answers["ps",] = " 50 1\n 77 50\n"
    assert list(find_orphans(host, (PROCESS,))) == []


def test_the_plan_names_one_process(host):
    """One step, one pid, with its check; nothing else is touched."""
    ((holder, proof),) = find_orphans(host, (PROCESS,))
    (step,) = plan_end(host, holder).steps
    assert step.command == ("kill", "-s", "TERM", "77")
    assert "--pid=77" in step.check
    assert proof in step.title


def test_another_process_with_the_same_number_is_left_alone(host):
    """The kernel's start time tells them apart."""
    ((holder, _),) = find_orphans(host, (PROCESS,))
    host.files["/proc/77/stat"] = STAT.replace("22", "4711").encode()
    with pytest.raises(Refused):
        plan_end(host, holder)


def test_a_real_process_ends(tmp_path: Path, monkeypatch):
    """The step really ends the process that it names, and waits until it is gone."""
    engine = tmp_path / "vllm"
    engine.symlink_to(sys.executable)
    child = subprocess.Popen([str(engine), "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen([str(engine), "-c", "import time; time.sleep(60)"])
    host = LocalHost(HostSettings(alias="here", address="local", sudo=False))
    dead = "opslib.workflow.orphan.gather_unit_status"
    monkeypatch.setattr("opslib.workflow.orphan.read_cgroup_unit", lambda _text: "gone.service")
    monkeypatch.setattr(dead, lambda _host, _unit: parse_unit_show("LoadState=not-found\nActiveState=inactive\n"))
    try:
        ((holder, _),) = find_orphans(host, (PROCESS.model_copy(update={"pid": child.pid, "name": "vllm"}),))
        threading.Thread(target=child.wait, daemon=True).start()  # its parent takes it away, as init would
        report = apply_plan(host, plan_end(host, holder))
        assert report.state is State.OK, report
        assert child.wait(5) == -15
        assert other.poll() is None
    finally:
        for process in (child, other):
            process.kill()
            process.wait()
