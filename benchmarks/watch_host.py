"""What the benchmark of the tracker needs of a real Debian host: units, ways to look on, processor time."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rig.debian import DebianHost

UNIT = "bench"
ROOT = Path(__file__).resolve().parents[1]
_SCOPE = re.compile(r"session-[^/]+\.scope$")


def put_unit(debian: DebianHost, text: str) -> None:
    """Install that text as the unit, and start it."""
    debian.ssh("systemctl", "stop", UNIT)
    debian.put_files({f"/etc/systemd/system/{UNIT}.service": (text.encode(), 0o644)})
    debian.ssh("systemctl", "daemon-reload")
    debian.ssh("systemctl", "start", UNIT)


@contextmanager
def beside(run: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """`run` goes on in a thread while the block lasts; `ended` tells it that the block is over."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


@contextmanager
def tracking(debian: DebianHost, take: Callable[[float, str], None]) -> Iterator[int]:
    """`opslib watch` looks on in a process of its own while the block lasts; `take` gets each line that it shows."""
    with tempfile.TemporaryDirectory() as place:
        inventory = Path(place, "hosts.toml")
        settings = debian.settings.model_dump(mode="json", exclude_defaults=True, exclude={"alias"})
        rows = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        inventory.write_text(f"[hosts.{debian.name}]\n{rows}")
        process = subprocess.Popen(
            [sys.executable, "-m", "opslib.cli", "watch", debian.name, UNIT, "--follow"],
            env={**os.environ, "OPSLIB_HOSTS": str(inventory), "COLUMNS": "200"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        shown = process.stdout

        def run() -> None:
            for line in shown:
                take(time.time(), line)

        reader = threading.Thread(target=run, daemon=True)
        reader.start()
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(20)
            reader.join(10)


@contextmanager
def looping(debian: DebianHost, every_s: float, seen: list[tuple[float, int]]) -> Iterator[None]:
    """An operator's loop: ssh, curl and systemctl; `seen` gets when the answer came and what NRestarts was."""
    ended = threading.Event()
    curl = "curl -s -m 1 -o /dev/null localhost:8000/health"
    asked = ("sh", "-c", f"{curl}; systemctl is-active {UNIT}; systemctl show -p NRestarts {UNIT}")

    def run() -> None:
        while not ended.is_set():
            text = debian.ssh(*asked).stdout
            n = [line.partition("=")[2] for line in text.splitlines() if line.startswith("NRestarts=")]
            if n:
                seen.append((time.time(), int(n[0])))
            ended.wait(every_s)

    with beside(run, ended):
        yield


def n_connections(debian: DebianHost, pid: int) -> int:
    """Connections of that process to the host's sshd."""
    asked = ["ss", "-Htnp", "state", "established", "dst", f"{debian.address}:22"]
    text = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return sum(f"pid={pid}," in line for line in text.splitlines())


def host_cpu_s(debian: DebianHost) -> float:
    """Processor seconds that the host has used so far, whoever used them and whether they still run or not."""
    supervisor = _group(debian.pid)
    return _used_s(supervisor.parent / "payload" if supervisor.name == "supervisor" else supervisor)


def tracker_scope(debian: DebianHost) -> Path:
    """The control group of the tracker's login: sshd's process for it, and all that it has started."""
    inside = _group(debian.pid).parent
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_program = b"--follow" in path.read_bytes().split(b"\0")
            group = _group(int(path.parent.name)) if is_program else None
        except OSError:
            continue
        if group and inside in group.parents and _SCOPE.search(group.name):
            return group
    raise SystemExit("the tracker's login was not found")


def samples_percent(scope: Path, seconds: int) -> list[float]:
    """One-second samples of what a control group uses, in percent of one core."""
    samples, before, at = [], _used_s(scope), time.monotonic()
    for _ in range(seconds):
        time.sleep(1.0)
        used, now = _used_s(scope), time.monotonic()
        samples.append(100.0 * (used - before) / (now - at))
        before, at = used, now
    return samples


def peak_mib(scope: Path) -> float:
    """The most memory that a program of this control group has had resident, in MiB."""
    peaks = []
    for pid in (scope / "cgroup.procs").read_text().split():
        status = Path(f"/proc/{pid}/status").read_text()
        peaks += [int(found[1]) / 1024 for found in re.finditer(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)]
    return max(peaks)


def resident_mib(pid: int) -> float:
    """What a process has resident now, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _group(pid: int) -> Path:
    """A process's control group in the second version's hierarchy, which counts microseconds."""
    path = next(
        line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")
    ).lstrip("/")
    roots = [root for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (root / path).is_dir()]
    return roots[0] / path


def _used_s(group: Path) -> float:
    words = (group / "cpu.stat").read_text().split()
    return int(words[words.index("usage_usec") + 1]) / 1e6
