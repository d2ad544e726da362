"""Gathering evidence about a failed start, and the verdict on it."""

import json
from datetime import UTC, datetime

import pytest

from opslib.domain.facts.gpu import gpu_memory_command, gpu_processes_command
from opslib.domain.facts.journal import journal_command
from opslib.domain.facts.ports import listeners_command
from opslib.domain.facts.systemd import show_unit_command
from opslib.errors import HostUnreachable, PrivilegeRefused
from opslib.workflow.investigate import gather_evidence, investigate, wait_until_ended
from tests.fakes import FakeHost, answered

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SHOW = "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nResult=exit-code\nInvocationID=next\nNRestarts=1\n"


def entry(second, message, **fields):
    at = int((NOW.timestamp() + second) * 1e6)
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(at), **fields})


def program(second, message):
    return entry(second, message, _SYSTEMD_INVOCATION_ID="i1", _TRANSPORT="stdout", SYSLOG_IDENTIFIER="vllm", _PID="7")


def systemd(second, message):
    return entry(second, message, INVOCATION_ID="i1", SYSLOG_IDENTIFIER="systemd", UNIT="vllm.service")


PORT_IN_USE = "\n".join(
    [
        systemd(0, "Started vllm.service."),
        program(1, "OSError: [Errno 98] Address already in use"),
        systemd(2, "vllm.service: Main process exited, code=exited, status=1/FAILURE"),
    ]
)


@pytest.fixture
def host():
    return FakeHost(
        {
            journal_command("vllm", invocation_id="i1"): PORT_IN_USE,
            ("journalctl",): "",
            show_unit_command("vllm"): SHOW,
            ("systemctl", "cat"): "# /etc/systemd/system/vllm.service\n[Unit]\n",
            gpu_memory_command(): "0, NVIDIA, GPU-1, 97250, 1, 97249, 570.1\n",
            gpu_processes_command(): "",
            listeners_command(8000): 'LISTEN 0 2048 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=4471,fd=27))\n',
        }
    )


def test_port_in_use_names_the_holder(host):
    """The verdict says who holds the port: program and pid."""
    found = investigate(host, "vllm", "i1", port=8000, clock=lambda: NOW)
    assert found.diagnosis.cause == "configuration/port-in-use"
    assert "held by vllm (pid 4471" in found.diagnosis.summary
    assert found.diagnosis.evidence[0].text == "OSError: [Errno 98] Address already in use"
    assert found.evidence.missing == ()


def test_kernel_lines_are_sorted_in_by_time(host):
    """A kernel's OOM line between the program's lines decides."""
    lines = [
        systemd(0, "Started vllm.service."),
        program(1, "(EngineCore pid=7) INFO 11-29 12:00:01 [core.py:1] Initializing a V1 LLM engine (v0.20.0)"),
        systemd(4, "vllm.service: Main process exited, code=killed, status=9/KILL"),
    ]
    kernel = entry(3, "Out of memory: Killed process 7 (VLLM::EngineCor) total-vm:1kB", _TRANSPORT="kernel")
    host.answers[journal_command("vllm", invocation_id="i1")] = "\n".join(lines)
    host.answers[("journalctl",)] = kernel
    found = investigate(host, "vllm", "i1", clock=lambda: NOW)
    assert found.diagnosis.cause == "host-memory/oom-killed"
    assert found.diagnosis.evidence[0].line == 2


def test_what_cannot_be_had_is_said(host):
    """A refusal or a missing command is noted; the rest is gathered nevertheless."""
    host.answers[gpu_memory_command()] = answered(exit_status=127, stderr="nvidia-smi: command not found")
    host.answers[("journalctl",)] = PrivilegeRefused("sudo: a password is required")
    evidence = gather_evidence(host, "vllm", "i1", port=8000, clock=lambda: NOW)
    assert [said.partition(":")[0] for said in evidence.missing] == ["kernel messages", "GPU memory"]
    assert evidence.status is not None
    assert len(evidence.journal) == 3


def test_an_unreachable_host_is_no_verdict(host):
    """Not being able to ask is not a judgement."""
    host.answers[("journalctl",)] = HostUnreachable("gone")
    with pytest.raises(HostUnreachable):
        investigate(host, "vllm", "i1", clock=lambda: NOW)


def test_waiting_ends_when_another_start_runs(host):
    """A start is over when the unit has another invocation, or no main process."""
    assert wait_until_ended(host, "vllm", "i1") is True


def test_a_stranger_on_the_gpu_is_named(host):
    """Too little free memory, and a process that the unit did not start: held by another, by name and pid."""
    free = "ValueError: Free memory on device cuda:0 (52.77/94.97 GiB) on startup is less than desired GPU memory utilization (0.95, 90.22 GiB)."
    lines = [program(1, free), systemd(2, "vllm.service: Main process exited, code=exited, status=1/FAILURE")]
    host.answers[journal_command("vllm", invocation_id="i1")] = "\n".join(lines)
    host.answers[show_unit_command("vllm")] = SHOW + "MainPID=50\n"
    host.answers[gpu_processes_command()] = "GPU-1, 77, 40960, python3\nGPU-1, 51, 900, VLLM::Worker\n"
    host.answers[("ps",)] = " 50 1\n 51 50\n 77 1\n"
    found = investigate(host, "vllm", "i1", clock=lambda: NOW)
    assert found.diagnosis.cause == "gpu-memory/held-by-another"
    assert "python3 holds 40.0 GiB of GPU 0. Its process id is 77." in found.diagnosis.summary
    assert [process.pid for process in found.evidence.foreign_gpu_processes] == [77]


def test_unit_that_systemd_does_not_know_is_said():
    """A name that systemd doesn't know, without lines, is unknown: it is said by name, with the next step."""
    known_nothing = "Id=nosuch.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n"
    host = FakeHost({("journalctl",): "", show_unit_command("nosuch"): known_nothing, ("systemctl", "cat"): ""})
    found = investigate(host, "nosuch", None, has_gpus=False, clock=lambda: NOW).diagnosis
    assert (found.cause, found.exit_code) == ("unknown", 3)
    assert found.summary.startswith("systemd knows no unit nosuch.service")
    assert "Next: check the name; `opslib survey HOST`" in found.summary
