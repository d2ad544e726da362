"""What a killed process left in the directory of temporary files is swept; what somebody owns, or nobody marked, stays."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from opslib.rehearsal.leftovers import hold, sweep
from opslib.rehearsal.server import start_rehearsal

OWN_AND_WAIT = """
import sys, time
from pathlib import Path
from opslib.rehearsal.leftovers import hold
hold(Path(sys.argv[1]))
print("owned", flush=True)
time.sleep(60)
"""


def made(place, name):
    """A directory with something in it."""
    directory = place / name
    (directory / "run").mkdir(parents=True)
    (directory / "run/file").write_text("x")
    return directory


def test_only_a_dead_owners_directory_is_swept(tmp_path):
    """A directory goes once the process that marked it is gone; one of a live process, unmarked or linked stays."""
    owned, unmarked, other = (made(tmp_path, name) for name in ("opslib-a", "opslib-b", "other-c"))
    process = subprocess.Popen([sys.executable, "-c", OWN_AND_WAIT, str(owned)], stdout=subprocess.PIPE)
    process.stdout.readline()
    (tmp_path / "opslib-link").symlink_to(other)
    os.close(hold(other))  # freed, but its name is not one of ours
    assert sweep(tmp_path) == ()
    process.kill()
    process.communicate()
    assert sweep(tmp_path) == (owned,)
    assert not owned.exists()
    assert unmarked.exists()
    assert other.exists()


def test_a_file_system_without_locks_keeps_its_directories(tmp_path, monkeypatch):
    """Where nothing can be locked nothing is marked: a start goes on, and nothing is swept."""
    directory = made(tmp_path, "opslib-a")

    def refuse(*_):
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", refuse)
        os.close(hold(directory))
    assert sweep(tmp_path) == ()
    assert [path.name for path in directory.iterdir()] == ["run"]


@pytest.fixture
def short_place(monkeypatch):
    """A directory of temporary files whose path leaves room for a socket's, as that of pytest may not."""
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setenv("TMPDIR", place)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(place)


def test_a_killed_daemons_root_is_swept_by_the_next(short_place):
    """A practice host killed by SIGKILL leaves its root alone behind, and the next one to start removes it."""
    killed = start_rehearsal("healthy")
    os.kill(killed.process_id, signal.SIGKILL)
    killed.close()
    assert [path.name for path in short_place.iterdir()] == [killed.root.name]
    with start_rehearsal("healthy") as host:
        assert [path.name for path in short_place.iterdir()] == [host.root.name]
    assert list(short_place.iterdir()) == []


END_AMONG_SIGNALS = """
import argparse, asyncio, os, signal, sys
from pathlib import Path
from opslib.rehearsal.daemon import run_daemon, stop_signals

async def serve(root):
    loop = asyncio.get_running_loop()
    stop_signals()
    loop.add_signal_handler(signal.SIGCHLD, lambda: None)
    close_pipe = loop._close_self_pipe
    def close_and_signal():
        close_pipe()
        for number in (signal.SIGCHLD, signal.SIGTERM):
            os.kill(os.getpid(), number)
    loop._close_self_pipe = close_and_signal

run_daemon(argparse.Namespace(root=Path(sys.argv[1]), remove_root=True), serve)
print("ended")
"""


def test_a_daemon_ends_without_a_word_among_signals(tmp_path):
    """A child's end or a second signal while the loop closes is no message on the operator's terminal."""
    command = [sys.executable, "-c", END_AMONG_SIGNALS, str(tmp_path / "opslib-root")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ended\n", "")
    assert not (tmp_path / "opslib-root").exists()
