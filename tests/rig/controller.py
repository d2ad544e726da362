"""A real Debian host that is its own controller: this checkout and its Python in it, and hosts.toml that names itself."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.rig.debian import DebianHost, debian_host, install_standin

ROOT = Path(__file__).parents[2]
ALIAS = "gpu-a"
RUNS = "/var/lib/runs"
VARIABLES = {"OPSLIB_HOSTS": "/etc/opslib/hosts.toml", "OPSLIB_RUNS": RUNS}
_PYTHON = ("/usr", "/usr/local")  # the guest has a /usr of its own


class Controller:
    """The host, and how the command line is called on it."""

    def __init__(self, debian: DebianHost) -> None:
        self.debian = debian

    def opslib(self, *arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """The command line, as root's shell would call it there."""
        variables = [f"{name}={value}" for name, value in VARIABLES.items()]
        return self.debian.ssh("env", *variables, sys.executable, "-m", "opslib.cli", *arguments, timeout_s=timeout_s)

    def sh(self, script: str, timeout_s: float = 60.0) -> str:
        """What a shell script prints there; it must succeed."""
        done = self.debian.ssh("sh", "-euc", script, timeout_s=timeout_s)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    @property
    def runs_dir(self) -> Path:
        """Where its records are seen from here."""
        return self.debian.local_path(f"{RUNS}/x").parent

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a text file there."""
        self.debian.put_files({path: (text.encode(), mode)})


@contextmanager
def controller(name: str, scenario: str = "healthy", binds: Sequence[tuple[Path, str]] = ()) -> Iterator[Controller]:
    """A freshly booted host of that name that can run this checkout's opslib against itself, over SSH."""
    places = {ROOT, Path(sys.prefix), Path(sys.base_prefix).resolve()}
    inside = [place for place in places if not any(place != other and place.is_relative_to(other) for other in places)]
    own = [(place, str(place)) for place in inside if str(place) not in _PYTHON]
    with debian_host(name, bind=[*own, *binds]) as debian:
        found = Controller(debian)
        settings = install_standin(debian, scenario)
        found.put("/etc/opslib/id", debian.identity_file.read_text(), 0o600)
        found.put("/etc/opslib/known_hosts", f"127.0.0.1 {debian.known_hosts.read_text().split(' ', 1)[1]}")
        lines = {
            "address": "127.0.0.1",
            "user": "root",
            "identity_file": "/etc/opslib/id",
            "known_hosts_file": "/etc/opslib/known_hosts",
            "vllm": settings.vllm,
        }
        table = "\n".join(f'{key} = "{value}"' for key, value in lines.items())
        found.put("/etc/opslib/hosts.toml", f"[hosts.{ALIAS}]\n{table}\n")
        found.sh(f"mkdir --parents {shlex.quote(RUNS)}")
        yield found
