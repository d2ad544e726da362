"""A real Debian with systemd, journald and sshd, in two seconds, on a private link of this machine."""

import atexit
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from opslib.domain.host import HostSettings
from tests.rig.cache import RigUnavailable
from tests.rig.image import base_image

__all__ = ["DebianHost", "RigUnavailable", "debian_host", "install_standin"]

BOOT_TIMEOUT_S = 30.0
_KEEPER = Path(__file__).with_name("keeper.py")
_LOGINS = {"root": "root", "ops": "home/ops", "nosudo": "home/nosudo"}
_NOT_ON_DISK = ("/dev/", "/proc/", "/run/", "/sys/", "/tmp/")


class DebianHost:
    """A running host: how to log in to it, where its files are seen from here, and its power switch."""

    def __init__(self, name: str, binds: Sequence[tuple[str | Path, str]]) -> None:
        self.name = name
        self.pid = 0  # of systemd-nspawn
        self.link, self.gateway, self.address = _reserve_link()
        self._directory = Path(tempfile.mkdtemp(prefix="opslib-rig-"))
        self.root_dir = self._directory / "root"
        self.known_hosts = self._directory / "known_hosts"
        self.identity_file = self._directory / "id"
        config = {
            "name": name,
            "directory": str(self._directory),
            "base": str(base_image()),
            "link": self.link,
            "gateway": self.gateway,
            "address": self.address,
            "binds": [(str(outside), inside) for outside, inside in binds],
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", str(_KEEPER), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is for the tests
        )

    @property
    def settings(self) -> HostSettings:
        """The inventory entry for root."""
        return self.settings_for("root")

    @property
    def ops_settings(self) -> HostSettings:
        """The inventory entry for `ops`, who may sudo without a password and read the journal."""
        return self.settings_for("ops")

    @property
    def nosudo_settings(self) -> HostSettings:
        """The inventory entry for `nosudo`, who may do neither."""
        return self.settings_for("nosudo")

    def settings_for(self, user: str) -> HostSettings:
        """The inventory entry for a login."""
        return HostSettings(
            alias=self.name,
            address=self.address,
            user=user,
            identity_file=str(self.identity_file),
            known_hosts_file=str(self.known_hosts),
        )

    def ssh(self, *argv: str, user: str = "root", timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run one command over the plain `ssh` client; the rig's own checks don't lean on the kit's."""
        options = ("BatchMode=yes", "IdentitiesOnly=yes", f"UserKnownHostsFile={self.known_hosts}")
        command = ["ssh", "-F", "none", "-i", str(self.identity_file), *(f"-o{option}" for option in options)]
        return subprocess.run(
            [*command, f"{user}@{self.address}", shlex.join(argv)],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def put_files(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        """Write files (absolute path -> content and mode) into the host's disk, without the host's help."""
        for path, (content, mode) in files.items():
            target = self.local_path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)

    def local_path(self, path: str) -> Path:
        """Where a path of the host is seen from here; refused where it would lead elsewhere."""
        inside = self.root_dir / path.lstrip("/")
        if path.startswith(_NOT_ON_DISK) or not inside.parent.resolve().is_relative_to(self.root_dir.resolve()):
            raise ValueError(f"{path} is not on the host's disk")
        return inside

    def restart(self, *, is_orderly: bool = True) -> None:
        """Shut down (or cut the power) and boot again; returns when sshd answers."""
        self.stop(is_orderly=is_orderly)
        self.start()

    def stop(self, *, is_orderly: bool = True) -> None:
        """Shut down, or cut the power; the disk stays."""
        self.pid = 0
        self._ask("stop" if is_orderly else "kill")

    def start(self) -> None:
        """Boot, and wait for sshd."""
        self.pid = int(self._ask("start"))
        self._wait_for_sshd()

    @contextmanager
    def network_cut(self) -> Iterator[None]:
        """While open, nothing goes in or out: no reset, no answer, as with a pulled cable."""
        subprocess.run(["ip", "link", "set", self.link, "down"], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "link", "set", self.link, "up"], check=True)

    def make(self) -> None:
        """Lay out disk and link, with fresh keys, and boot."""
        self._ask("make")
        self._write_identity()
        self.start()

    def close(self) -> None:
        """End the host and take away all that was made for it; safe to call twice."""
        atexit.unregister(self.close)
        if self._keeper.stdin and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
        self._keeper.wait()
        if self._keeper.stdout:
            self._keeper.stdout.close()

    def console(self) -> str:
        """What the host printed while booting."""
        written = self._directory / "console"
        return written.read_text(errors="replace") if written.exists() else ""

    def _ask(self, act: str) -> str:
        assert self._keeper.stdin
        assert self._keeper.stdout
        self._keeper.stdin.write(f"{act}\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline().strip()
        if answer.startswith("error") or not answer:
            raise RigUnavailable(f"the real Debian host could not {act}: {answer.removeprefix('error ')}")
        return answer

    def _write_identity(self) -> None:
        _keygen(self.identity_file)
        host_key = self._directory / "host_key"
        _keygen(host_key)
        public = host_key.with_suffix(".pub").read_text()
        self.known_hosts.write_text(f"{self.address} {public}")
        self.put_files(
            {
                "/etc/ssh/ssh_host_ed25519_key": (host_key.read_bytes(), 0o600),
                "/etc/ssh/ssh_host_ed25519_key.pub": (public.encode(), 0o644),
                "/etc/machine-id": (f"{uuid.uuid4().hex}\n".encode(), 0o444),
                "/etc/hostname": (f"{self.name}\n".encode(), 0o644),
                "/etc/hosts": (f"127.0.0.1 localhost\n{self.address} {self.name}\n".encode(), 0o644),
            }
        )
        for user, home in _LOGINS.items():
            self._authorize(user, self.root_dir / home)

    def _authorize(self, user: str, home: Path) -> None:
        owner = home.stat()
        keys = home / ".ssh" / "authorized_keys"
        keys.parent.mkdir(mode=0o700, exist_ok=True)
        keys.write_text(self.identity_file.with_suffix(".pub").read_text())
        for path in (keys.parent, keys):
            os.chown(path, owner.st_uid, owner.st_gid)

    def _wait_for_sshd(self) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((self.address, 22), timeout=1) as connection:
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            time.sleep(0.02)
        last = self.console().strip().splitlines()[-3:]
        raise RigUnavailable(f"the real Debian host has no sshd after {BOOT_TIMEOUT_S:.0f} s: {' / '.join(last)}")


@contextmanager
def debian_host(name: str = "opslib-t1", *, bind: Sequence[tuple[str | Path, str]] = ()) -> Iterator[DebianHost]:
    """A freshly booted host of that name; `bind` shows directories of this machine in it, read-only.

    Raises RigUnavailable, with the reason in one line, where this machine cannot run one.
    """
    base_image()
    host = DebianHost(name, bind)
    atexit.register(host.close)
    try:
        host.make()
        yield host
    finally:
        host.close()


def install_standin(debian: DebianHost, scenario: str = "sampler-oom") -> HostSettings:
    """Put the stand-in engine, its nvidia-smi and the scenario's checkpoint on the host; the settings to use it with.

    Damage that the scenario does to files is done; what it has running beforehand is left to the test.
    """
    from opslib.rehearsal.checkpoint import write_checkpoint
    from opslib.rehearsal.layout import change_file
    from opslib.rehearsal.scenarios import load_scenario
    from opslib.rehearsal.standin_install import standin_files

    loaded = load_scenario(scenario)
    debian.put_files(standin_files(loaded, prefix="/opt/standin"))
    link = debian.local_path("/usr/local/bin/nvidia-smi")
    link.unlink(missing_ok=True)
    link.symlink_to("/opt/standin/bin/nvidia-smi")
    checkpoint = debian.local_path("/srv/models/minimax-m2-230b-fp8")
    if checkpoint.exists():
        shutil.rmtree(checkpoint)
    write_checkpoint(checkpoint)
    for before in loaded.before:
        change_file(checkpoint.parent, before)
    return debian.settings.model_copy(update={"vllm": "/opt/standin/bin/vllm"})


def _reserve_link() -> tuple[str, str, str]:
    """A network namespace nobody else has, and the two addresses of its link (a /30 of 10.231.0.0/16)."""
    first = os.getpid() % 16384
    for index in (*range(first, 16384), *range(first)):
        name = f"opsl{index}"
        done = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            low = index % 64 * 4
            return name, f"10.231.{index // 64}.{low + 1}", f"10.231.{index // 64}.{low + 2}"
        if "exists" not in done.stderr:
            raise RigUnavailable(f"no network namespace can be made here: {done.stderr.strip()}")
    raise RigUnavailable("all 16384 links of the real hosts are in use")


def _keygen(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rig", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
