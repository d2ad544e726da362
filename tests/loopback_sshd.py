"""A real sshd on a loopback port, run by whoever runs the tests: no root and no image needed."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opslib.domain.host import HostSettings

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/id.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={directory}/home
{extra}
"""


@contextmanager
def loopback_sshd(directory: Path, extra: str = "") -> Iterator[HostSettings]:
    """An sshd with keys of its own; its home directory is empty, so no shell start-up file slows it down."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # made by the service where there is one
    (directory / "home").mkdir(exist_ok=True)
    port = free_port()
    for name in ("host_key", "id"):
        keygen(directory / name)
    (directory / "sshd_config").write_text(_CONFIG.format(port=port, directory=directory, extra=extra))
    known = directory / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {(directory / 'host_key.pub').read_text()}")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(directory / "sshd_config")], stderr=log)
    try:
        _wait_for(port, process, directory / "log")
        yield HostSettings(
            alias="loopback",
            address="127.0.0.1",
            port=port,
            user=getpass.getuser(),
            identity_file=str(directory / "id"),
            known_hosts_file=str(known),
        )
    finally:
        process.terminate()
        process.wait()


def keygen(path: Path) -> None:
    """A new ed25519 key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"sshd did not start: {log.read_text()}")
