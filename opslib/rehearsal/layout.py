"""The rehearsal host's root directory: programs, checkpoint, keys, and what its scenario did beforehand."""

import os
import random
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import asyncssh

from opslib.rehearsal.checkpoint import write_checkpoint
from opslib.rehearsal.scenarios import Before, Scenario
from opslib.rehearsal.standin_install import standin_files

MODEL = "minimax-m2-230b-fp8"
_DIRECTORIES = (
    "bin",
    "etc/ssh",
    "etc/systemd/system",
    "home/ops/.ssh",
    "opt",
    "run",
    "srv/models",
    "var/lib/opslib",
    "var/log",
)
_CLIENTS = {
    "systemctl": "client",
    "journalctl": "client",
    "systemd-analyze": "client",
    "sudo": "sudo",
    "ss": "ss",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHEBANG_LIMIT = 120  # Linux cuts longer ones


@dataclass(frozen=True)
class Layout:
    """Where things lie under the root, and the address that stands for the host's loopback."""

    root: Path
    loopback: str

    @property
    def unit_dir(self) -> Path:
        """Unit files."""
        return self.root / "etc/systemd/system"

    @property
    def host_key(self) -> Path:
        """The SSH server's private key."""
        return self.root / "etc/ssh/ssh_host_ed25519_key"

    @property
    def identity_file(self) -> Path:
        """The private key that logs in."""
        return self.root / "home/ops/.ssh/id_ed25519"

    @property
    def authorized_keys(self) -> Path:
        """The public keys that may log in."""
        return self.root / "home/ops/.ssh/authorized_keys"

    @property
    def known_hosts(self) -> Path:
        """The pinned host key, for the client's side."""
        return self.root / "known_hosts"

    @property
    def vllm(self) -> Path:
        """The stand-in engine."""
        return self.root / "opt/vllm/bin/vllm"

    @property
    def ledger_dir(self) -> Path:
        """Where the stand-ins keep what they hold of the GPUs."""
        return self.root / "opt/vllm/var/ledger"

    def environment(self) -> dict[str, str]:
        """What units and sessions share: the host's own programs first on PATH, its loopback address."""
        return {
            "PATH": f"{self.root}/bin:{_SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            "OPSLIB_LOOPBACK": self.loopback,
        }

    def session_environment(self) -> dict[str, str]:
        """What a login adds, as sshd sets it."""
        home = str(self.root / "home/ops")
        return {**self.environment(), "HOME": home, "USER": "ops", "LOGNAME": "ops", "SHELL": "/bin/sh"}


def lay_out(root: Path, scenario: Scenario, shared: Path | None = None) -> Layout:
    """Make the root directory as the scenario wants it; a checkpoint that it leaves alone may be `shared`, by links."""
    layout = Layout(root, free_loopback())
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    _install_programs(layout, scenario)
    _make_keys(layout)
    checkpoint = root / "srv/models" / MODEL
    if not checkpoint.exists():
        _place_checkpoint(checkpoint, None if any(before.path for before in scenario.before) else shared)
    for before in scenario.before:
        change_file(root / "srv/models", before)
    return layout


def _place_checkpoint(path: Path, shared: Path | None) -> None:
    if shared is None:
        write_checkpoint(path)
    else:
        shutil.copytree(shared, path, copy_function=os.link)


def free_loopback() -> str:
    """A loopback address for this host alone (Linux has 127.0.0.0/8); 127.0.0.1 where there is only that."""
    for _ in range(8):
        address = f"127.{random.randint(64, 254)}.{random.randint(0, 255)}.{random.randint(2, 254)}"  # noqa: S311
        with socket.socket() as probe:
            try:
                probe.bind((address, 8000))
            except OSError:
                continue
            return address
    return "127.0.0.1"


def pin(layout: Layout, port: int) -> None:
    """Write the known_hosts file for the port that the server got."""
    public = layout.host_key.with_suffix(".pub").read_text().split()
    layout.known_hosts.write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")


def _install_programs(layout: Layout, scenario: Scenario) -> None:
    python = os.path.realpath(sys.executable)
    for name, module in _CLIENTS.items():
        source = (resources.files("opslib.rehearsal.standin") / f"{module}.py").read_text("utf-8")
        _write(layout.root / "bin" / name, f"{_shebang(python)}{source}".encode(), 0o755)
    if shutil.which("python3", path=_SYSTEM_PATH) is None:
        _link(layout.root / "bin/python3", Path(python))
    prefix = layout.root / "opt/vllm"
    for path, (content, mode) in standin_files(scenario, str(prefix), python=python).items():
        _write(Path(path), content, mode)
    _link(layout.root / "bin/nvidia-smi", prefix / "bin/nvidia-smi")


def _shebang(python: str) -> str:
    if " " in python or len(python) > _SHEBANG_LIMIT:  # a shell script that is a Python string, as pip writes them
        return f"#!/bin/sh\n'''exec' '{python}' -SsE \"$0\" \"$@\"\n' '''\n"
    return f"#!{python} -SsE\n"


def _make_keys(layout: Layout) -> None:
    for path in (layout.host_key, layout.identity_file):
        if not path.exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment="rehearsal")
            _write(path, key.export_private_key(), 0o600)
            _write(path.with_suffix(".pub"), key.export_public_key(), 0o644)
    _write(layout.authorized_keys, layout.identity_file.with_suffix(".pub").read_bytes(), 0o600)


def change_file(models: Path, before: Before) -> None:
    """Do to the files below `models` what a scenario did to them beforehand; other kinds do nothing."""
    path = models / (before.path or "")
    if before.kind == "download_tiny":
        write_checkpoint(path, "tiny")
    elif before.kind == "remove_file":
        path.unlink(missing_ok=True)
    elif before.kind == "truncate_file":
        os.truncate(path, before.to_bytes or 0)
    elif before.kind == "flip_bit":
        flip_bit(path, before.at_byte or 0)


def flip_bit(path: Path, at_byte: int) -> None:
    """Turn the lowest bit of one byte, as a failing disk does: size and time stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at_byte)
        byte = file.read(1)[0]
        file.seek(at_byte)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
