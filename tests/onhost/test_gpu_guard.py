"""The GPU guard: waits for its own GPUs, says who holds them, gives up with one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.onhost import gpu_guard

GUARD = Path(gpu_guard.__file__)
SMI = """#!{python}
import pathlib, sys
here = pathlib.Path(__file__).parent
count = here / "count"
asked = int(count.read_text()) + 1 if count.exists() else 1
if "compute-apps" in sys.argv[1]:
    print("GPU-b, 4711, 58880, VLLM::Worker_TP1, tp")
    print("GPU-z, 9, 100, other")
else:
    count.write_text(str(asked))
    held = 0 if asked > {busy_answers} else 58880
    print("0, GPU-a, 97250, 97250")
    print("1, GPU-b, %d, 97250" % (97250 - held))
    print("7, GPU-z, 0, 97250")
"""


@pytest.fixture
def smi(tmp_path):
    """A nvidia-smi whose GPU 1 is held for a number of answers; GPU 7 always."""

    def make(busy_answers, text=SMI):
        program = tmp_path / "nvidia-smi"
        program.write_text(text.format(python=sys.executable, busy_answers=busy_answers))
        program.chmod(0o755)
        return str(program)

    return make


def run(program, *more, gpus="0,1", required="90.2"):
    argv = [sys.executable, str(GUARD), "--gpus", gpus, "--required-free-gib", required, "--nvidia-smi", program, *more]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env={"PATH": os.defpath})


def test_free_gpus_pass_at_once(smi):
    """Other GPUs of the host are none of its business."""
    result = run(smi(0))
    assert (result.returncode, result.stdout) == (0, "gpu-guard: GPUs 0, 1 have 90.2 GiB free each (waited 0 s)\n")


def test_it_waits_until_the_memory_is_released_and_says_who_holds_it(smi, monkeypatch, capsys):
    """One line when waiting starts names process and GPU; then silence until it's free."""
    monkeypatch.setattr(gpu_guard, "POLL_S", 0.05)
    status = gpu_guard.main({"gpus": [0, 1], "required_free_gib": 90.2, "wait_s": 20, "nvidia_smi": smi(3)})
    waiting, done = capsys.readouterr().out.splitlines()
    assert waiting == (
        "gpu-guard: waiting for 90.2 GiB (up to 20 s); free GPU 1: 37.5 of 95.0 GiB; "
        "held by GPU 1: pid 4711 (VLLM::Worker_TP1,tp) 57.50 GiB"
    )
    assert (status, "have 90.2 GiB free" in done) == (0, True)


def test_it_reports_progress_while_it_waits(smi, monkeypatch, capsys):
    """A line now and then shows that it lives."""
    monkeypatch.setattr(gpu_guard, "POLL_S", 0.02)
    monkeypatch.setattr(gpu_guard, "TELL_S", 0.05)
    assert gpu_guard.main({"gpus": [1], "required_free_gib": 90.2, "wait_s": 20, "nvidia_smi": smi(6)}) == 0
    assert "still waiting after" in capsys.readouterr().out


def test_it_gives_up_with_one_clear_line(smi):
    """Exit status 1 ends the unit's start; the line says what's missing and who has it."""
    result = run(smi(10**6), "--wait-s", "0.3")
    last = result.stdout.splitlines()[-1]
    assert result.returncode == 1
    assert last.startswith(
        "gpu-guard: gave up after 0 s: 90.2 GiB needed; free GPU 1: 37.5 of 95.0 GiB; held by GPU 1: pid 4711"
    )


def test_it_does_not_wait_for_what_no_gpu_has(smi):
    """More than the GPU's size will never be free."""
    result = run(smi(0), required="200")
    assert (result.returncode, result.stdout.startswith("gpu-guard: no GPU of that size")) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n", "exited with 9: NVIDIA-SMI has failed"),
        ("#!/bin/sh\necho 0, GPU-a, 5, 5\n", "nvidia-smi knows no GPU 1"),
        ("#!/bin/sh\necho 0, GPU-a, [N/A], [N/A]\n", "GPU 0 does not report its memory"),
    ],
)
def test_what_cannot_be_told_is_a_failure_not_a_guess(smi, text, message):
    """A guard that can't see lets nothing pass."""
    result = run(smi(0, text=text))
    assert (result.returncode, message in result.stdout) == (1, True)


def test_a_host_without_nvidia_smi_is_told(tmp_path):
    """One line, no traceback."""
    result = run(str(tmp_path / "none"))
    assert (result.returncode, result.stderr, len(result.stdout.splitlines())) == (1, "", 1)
