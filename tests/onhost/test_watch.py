"""The program that watches a launch on the host, run as a real process with stand-in commands."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.onhost.ready_engine import start_ready_engine

JOURNAL = """
import json, sys, time
for n in range(3):
    print(json.dumps({"MESSAGE": f"line {n}", "__CURSOR": f"c{n}", "_SYSTEMD_INVOCATION_ID": "i1"}), flush=True)
print("-- no entries --", flush=True)
time.sleep(60)
"""
SHOW = "print('LoadState=loaded'); print('ActiveState=active')"


@pytest.fixture
def watch():
    server = start_ready_engine()
    arguments = {
        "journal": [sys.executable, "-c", JOURNAL],
        "show": [sys.executable, "-c", SHOW],
        "gpu": [sys.executable, "-c", "print('0, 3, NVIDIA, GPU-1, 97250, 1, 97249, 570')"],
        "port": server.server_port,
        "interval_s": 0.1,
    }
    program = f"import sys, json; from opslib.onhost import watch; sys.exit(watch.main(json.loads({json.dumps(arguments)!r})))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    server.shutdown()
    server.server_close()


def lines_for(process, seconds):
    threading.Timer(seconds, process.send_signal, [signal.SIGTERM]).start()
    return [json.loads(line) for line in process.stdout]


def test_every_kind_of_change_is_told_once(watch):
    """Journal entries come as they are, states only when they change, and a tick says that the link works."""
    lines = lines_for(watch, 3.0)
    kinds = [line["type"] for line in lines]
    assert [line["entry"]["MESSAGE"] for line in lines if line["type"] == "journal"] == ["line 0", "line 1", "line 2"]
    assert kinds.count("health") == kinds.count("unit") == kinds.count("gpu") == 1
    assert next(line for line in lines if line["type"] == "health")["status_code"] == 200
    assert kinds.count("tick") >= 1
    assert all(line["at"] > 1e9 for line in lines)


def test_sigterm_ends_the_program_and_its_children(watch):
    """On SIGTERM the program ends by itself, and the following journalctl with it."""
    lines_for(watch, 1.0)
    assert watch.wait(timeout=5) == 0
    children = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    assert "-- no entries --" not in children


def test_it_ends_when_nobody_reads(watch):
    """Without a reader the program ends within a few seconds."""
    watch.stdout.readline()
    watch.stdout.close()
    began = time.monotonic()
    watch.wait(timeout=10)
    assert time.monotonic() - began < 6
