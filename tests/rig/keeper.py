"""Keeps one nspawn host: makes its root, network and control groups, boots it, and leaves nothing behind.

A process of its own, so that there is one way to end, whatever happens to the tests: its standard input closes.
It answers each line (`start`, `stop`, `kill`) with one line: the process id of systemd-nspawn, or `-`.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

STOP_TIMEOUT_S = 15


class Keeper:
    """The host's parts, by the one name that its link, namespace and control groups share."""

    def __init__(self, config: dict) -> None:
        self.config = config
        self.link = config["link"]
        self.directory = Path(config["directory"])
        self.groups: list[Path] = []
        self.nspawn: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Mount the root over the base image, and lay the link with both its addresses."""
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir()
        layers = f"lowerdir={self.config['base']},upperdir={self.directory}/upper,workdir={self.directory}/work"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", f"{self.directory}/root")
        _run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "host0", "netns", self.link)
        _run("ip", "address", "add", f"{self.config['gateway']}/30", "dev", self.link)
        _run("ip", "link", "set", self.link, "up")
        inside = ("ip", "-netns", self.link)
        _run(*inside, "address", "add", f"{self.config['address']}/30", "dev", "host0")
        _run(*inside, "link", "set", "host0", "up")
        _run(*inside, "link", "set", "lo", "up")
        _mount_named_hierarchy()
        self.groups = [parent / self.link for parent in _own_groups()]

    def start(self) -> None:
        """Boot; the guest has control groups of its own, or two guests' systemd would take each other's for theirs."""
        for group in self.groups:
            group.mkdir(exist_ok=True)
        binds = [f"--bind-ro={outside}:{inside}" for outside, inside in self.config["binds"]]
        command = [
            *("setpriv", "--pdeathsig", "KILL"),
            *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit"),
            *("--link-journal=no", "--resolv-conf=off", "--timezone=off"),
            f"--directory={self.directory}/root",
            f"--machine={self.link}",
            f"--hostname={self.config['name']}",
            f"--network-namespace-path=/run/netns/{self.link}",
            *binds,
        ]
        with (self.directory / "console").open("ab") as console:
            self.nspawn = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                preexec_fn=self._enter_groups,  # noqa: PLW1509 - this process has one thread
            )

    def _enter_groups(self) -> None:
        for group in self.groups:
            with contextlib.suppress(OSError):  # cpuset takes no process before it is configured
                (group / "cgroup.procs").write_text("0")

    def end(self, *, is_orderly: bool) -> None:
        """Shut the guest down, or take its power away; returns when all its processes are gone."""
        if self.nspawn is None:
            return
        if is_orderly:
            self.nspawn.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.nspawn.wait(STOP_TIMEOUT_S)
        for pid in (*_children(self.nspawn.pid), self.nspawn.pid):  # the guest's init first: nspawn then tidies up
            if self.nspawn.poll() is None:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.kill(pid, signal.SIGKILL)
                    self.nspawn.wait(5)
        self.nspawn = None

    def remove(self) -> None:
        """Everything that was made, in reverse; a part that was never made is no error."""
        self.end(is_orderly=False)
        _run("ip", "link", "delete", self.link, check=False)
        _run("ip", "netns", "delete", self.link, check=False)
        _run("umount", f"{self.directory}/root", check=False)
        for group in self.groups:
            for path, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
        shutil.rmtree(f"/run/systemd/nspawn/propagate/{self.link}", ignore_errors=True)
        if not os.path.ismount(f"{self.directory}/root"):
            shutil.rmtree(self.directory, ignore_errors=True)


def _own_groups() -> list[Path]:
    """The group of this process in each mounted hierarchy."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    groups = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ")
        kind, _, options = after.split(" ", 2)
        mount_point = Path(before.split()[4])
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = set(options.split(","))
        path = next((p for c, p in own.items() if (set(c.split(",")) <= names if c else kind == "cgroup2")), None)
        if path is not None and (mount_point / path.lstrip("/")).is_dir():
            groups.append(mount_point / path.lstrip("/"))
    return groups


def _mount_named_hierarchy() -> None:
    """Where control groups are version 1, systemd wants a hierarchy called `systemd`; it stays, like a kernel module."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists() or os.path.ismount(top / "systemd"):
        return
    if not os.path.ismount(top):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(top))
    (top / "systemd").mkdir(exist_ok=True)
    _run("mount", "-t", "cgroup", "-o", "none,name=systemd", "cgroup", str(top / "systemd"))


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> None:
    """Serve the lines of standard input; at its end, remove the host."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    keeper = Keeper(json.loads(sys.argv[1]))
    acts = {
        "make": keeper.make,
        "start": keeper.start,
        "stop": lambda: keeper.end(is_orderly=True),
        "kill": lambda: keeper.end(is_orderly=False),
    }
    try:
        for line in sys.stdin:
            try:
                acts[line.strip()]()
            except (OSError, RuntimeError) as error:
                print(f"error {error}", flush=True)
                continue
            print(keeper.nspawn.pid if keeper.nspawn else "-", flush=True)
    finally:
        keeper.remove()


if __name__ == "__main__":
    main()
