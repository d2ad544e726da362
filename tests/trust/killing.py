"""Ways to end a deploy that nobody foresaw, and what the host says afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opslib.domain.host import HostSettings
from opslib.hosts import open_host
from opslib.records.alive import is_alive
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import read_unit_text

UNIT = "vllm-minimax"
BEGIN_S = 120
END_S = 90
TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"  # holds the other end of the run's terminal


class Deploy:
    """A running `opslib run 90-deploy` with its record, in a terminal of its own."""

    def __init__(self, runs_dir: Path, environment: dict[str, str]) -> None:
        given = ["-p", "host=practice", "-p", "consent=given", "-p", "concurrency_levels=[1, 4]"]
        command = [sys.executable, "-m", "opslib.cli", "run", "90-deploy", *given, "--runs-dir", str(runs_dir)]
        self.runs_dir = runs_dir
        self.terminal = subprocess.Popen(
            [sys.executable, "-c", TERMINAL, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def folder(self) -> Path | None:
        return next(iter(sorted(path.parent for path in self.runs_dir.glob("*/record.json"))), None)

    def wait_for(self, section: str, kind: str) -> None:
        """Until an event of this kind and section is told."""
        deadline = time.monotonic() + BEGIN_S
        while time.monotonic() < deadline:
            if any((event.get("section"), event.get("kind")) == (section, kind) for event in self.events()):
                return
            assert self.terminal.poll() is None, "the deploy ended before it came to that"
            time.sleep(0.02)
        raise AssertionError(f"no {kind} of {section} in {BEGIN_S} s")

    def events(self) -> list[dict[str, object]]:
        with suppress(OSError, TypeError):
            lines = (self.folder / "events.jsonl").read_bytes().splitlines()
            return [json.loads(line) for line in lines if line.endswith(b"}")]
        return []

    def processes(self) -> tuple[int, int]:
        """The kernel's number and papermill's."""
        record = json.loads((self.folder / "record.json").read_text())
        return record["process_id"], record["parent_process_id"]

    def wait_until_gone(self) -> None:
        numbers, deadline = self.processes(), time.monotonic() + END_S
        while any(is_alive("", number) for number in numbers):
            assert time.monotonic() < deadline, f"{numbers} are still there"
            time.sleep(0.1)

    def end(self) -> None:
        """End what is left of it, by its own process numbers."""
        for number in (*(self.processes() if self.folder else ()), self.terminal.pid):
            with suppress(ProcessLookupError, TypeError):
                os.kill(number, signal.SIGKILL)
        self.terminal.wait()


def kill_papermill(deploy: Deploy) -> None:
    os.kill(deploy.processes()[1], signal.SIGKILL)


def kill_kernel(deploy: Deploy) -> None:
    os.kill(deploy.processes()[0], signal.SIGKILL)


def kill_terminal(deploy: Deploy) -> None:
    deploy.terminal.send_signal(signal.SIGKILL)
    deploy.terminal.wait()


def fill_disk(deploy: Deploy) -> None:
    """Not one byte more fits where the records are."""
    with (deploy.runs_dir / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while filler.write(b"\0" * size) == size:
                    pass


FAULTS = {"papermill": kill_papermill, "kernel": kill_kernel, "terminal": kill_terminal, "full disk": fill_disk}


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of a few megabytes; raises CalledProcessError where this login may not mount one."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def assert_host_is_as_told(settings: HostSettings, record: dict, folder: Path, unit_before: str | None) -> str:
    """Hold what the record says of the host against the host itself; gives the kind of statement that it was."""
    said = record["outcome"]["reason"]
    planned = next((one["value"] for one in record["sections"] if one["name"] == "plan-unit"), None)
    ended = {one["name"]: one["state"] for one in record["sections"]}
    host = open_host(settings)
    try:
        text, status = read_unit_text(host, UNIT), gather_unit_status(host, UNIT)
    finally:
        host.close()
    if "nothing was changed on" in said:
        assert text == unit_before
        assert status.active_state == "inactive"
        return "nothing"
    if "a roll-back was begun" in said:
        return "in part"
    if "rolled back" in said:
        assert text == unit_before
        assert status.active_state == "inactive"
        return "rolled back"
    assert planned
    if "some steps of the plan may be done" in said:
        assert status.active_state == "inactive"
        done = [
            event["text"] for event in _events(folder) if (event.get("section"), event["kind"]) == ("install", "line")
        ]
        assert text is not None or not any("vllm-minimax.service" in title for title in done)
        return "in part"
    assert "is installed and may be running" in said, said
    assert f"sudo systemctl stop {UNIT}" in said, said
    assert "undo: sudo " in said, said
    assert ended["install"] == "ok"
    assert text, said
    assert status.load_state == "loaded"
    return "installed"


def _events(folder: Path) -> list[dict]:
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines if line.endswith(b"}")]
