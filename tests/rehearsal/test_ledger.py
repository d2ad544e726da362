"""The GPU memory ledger, and nvidia-smi's answers from it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opslib.rehearsal.standin.ledger import GIB, Ledger
from opslib.rehearsal.standin.nvidia_smi import Refused, answer, uuid_of

GPUS = {"count": 4, "name": "NVIDIA Test", "total_gib": 94.97, "driver_version": "580.95.05", "release_lag_s": 0.4}


@pytest.fixture
def settings(tmp_path):
    return {"ledger_dir": str(tmp_path / "ledger"), "gpus": GPUS}


@pytest.fixture
def ledger(settings):
    return Ledger(settings["ledger_dir"], GPUS)


def hold_in_a_process(settings):
    program = (
        "import sys, time; from opslib.rehearsal.standin.ledger import Ledger\n"
        f"Ledger({settings['ledger_dir']!r}, {GPUS!r}).hold({{2: 5 * 1024**3}}, 'VLLM::Worker_TP2')\n"
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def test_memory_of_all_processes_adds_up(ledger, settings):
    """What is used on a GPU is the sum over the living, with or without oneself."""
    other = hold_in_a_process(settings)
    try:
        ledger.hold({2: 3 * GIB, 0: GIB}, "python")
        assert ledger.used_bytes(2) == 8 * GIB
        assert ledger.used_bytes(2, but_pid=os.getpid()) == 5 * GIB
        assert ledger.used_bytes(0) == GIB
        ledger.release()
        assert ledger.used_bytes(2) == 5 * GIB
    finally:
        other.kill()
        other.wait()


def test_a_dead_process_memory_is_released_with_a_lag(ledger, settings):
    """Killed memory is still used for a moment, without a process that nvidia-smi could name; then it is pruned."""
    other = hold_in_a_process(settings)
    other.kill()
    other.wait()
    assert ledger.used_bytes(2) == 5 * GIB
    query = ["--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    assert answer(query, settings) == ""
    time.sleep(0.6)
    assert ledger.used_bytes(2) == 0
    assert not list(Path(ledger.directory).glob("*.json"))


def test_queries_answer_as_nvidia_smi_does(ledger, settings):
    """CSV with a blank after the comma, MiB without units, GPUs chosen by index."""
    ledger.hold({1: 2 * GIB}, "VLLM::Worker_TP1")
    text = answer(
        ["--query-gpu=index,memory.total,memory.used,memory.free", "--format=csv,noheader,nounits", "--id=0,1"],
        settings,
    )
    assert text == "0, 97249, 0, 97249\n1, 97249, 2048, 95201\n"
    text = answer(
        ["--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits"], settings
    )
    assert text == f"{uuid_of(1)}, {os.getpid()}, 2048, VLLM::Worker_TP1\n"
    assert answer(["--query-gpu=memory.used", "--format=csv", "-i", "1"], settings) == "memory.used [MiB]\n2048 MiB\n"
    watched = [
        "--query-gpu=index,clocks.sm,clocks_throttle_reasons.active",
        "--format=csv,noheader,nounits",
        "--id=0,1",
    ]
    assert answer(watched, settings) == "0, 180, 0x0000000000000001\n1, 2400, 0x0000000000000000\n"
    assert answer(["-L"], settings).startswith(f"GPU 0: NVIDIA Test (UUID: {uuid_of(0)})\n")
    ledger.release()


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--query-gpu=memory.fred", "--format=csv"], 2),
        (["--query-gpus=index", "--format=csv"], 1),
        (["--query-gpu=index", "--format=xml"], 2),
        (["--query-gpu=index", "--format=csv", "--id=9"], 6),
        ([], 1),
    ],
)
def test_what_the_real_one_refuses_is_refused(settings, argv, status):
    """An unknown option, field, format or GPU is an error with the real exit status."""
    with pytest.raises(Refused) as refusal:
        answer(argv, settings)
    assert refusal.value.status == status


def test_a_lost_gpu_fails_every_query_but_those_of_others(settings, ledger):
    """A GPU that fell off the bus makes nvidia-smi fail with status 15 and its bus address; others can be asked alone."""
    query = ["--query-gpu=index,memory.used", "--format=csv,noheader"]
    (Path(settings["ledger_dir"]) / "lost-2").touch()
    with pytest.raises(Refused, match=r"GPU2: 0000:31:00\.0: GPU is lost") as refusal:
        answer(query, settings)
    assert refusal.value.status == 15
    assert answer(["--id=1", *query], settings) == "1, 0 MiB\n"
    assert ledger.is_lost(2)
