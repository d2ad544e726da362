"""What to put on a host so that the stand-in engine and nvidia-smi run there as plain programs."""

import json
from importlib import resources
from typing import Literal

from opslib.rehearsal.scenarios import Scenario
from opslib.rehearsal.standin.engine_flags import FLAGS, SHORT

DEFAULT_PREFIX = "/opt/standin"
_PROGRAMS = {"vllm": "engine", "nvidia-smi": "nvidia_smi", "hold-gpu-memory": "hold_gpu_memory", "listen": "listen"}
_LAUNCHER = """\
#!{python}
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "lib"))
from opslib.rehearsal.standin.{module} import main
sys.exit(main())
"""


def standin_files(
    scenario: Scenario,
    prefix: str = DEFAULT_PREFIX,
    *,
    python: str = "/usr/bin/env python3",
    ledger_dir: str | None = None,
    clock_factor: float | None = None,
) -> dict[str, tuple[bytes, int]]:
    """The files by absolute path, each with its bytes and mode: bin/ (launchers), lib/ (modules, and the
    directory that tells the engine's version), share/rehearsal.json.

    The launchers find lib/ and share/ beside their real file, so links to them work. `ledger_dir` defaults to
    /dev/shm/opslib-standin under the default prefix (any user may write there, and a reboot empties it, as it does a
    GPU) and to PREFIX/var/ledger elsewhere.
    """
    default_ledger = "/dev/shm/opslib-standin" if prefix == DEFAULT_PREFIX else f"{prefix}/var/ledger"  # noqa: S108
    files = {
        f"{prefix}/bin/{program}": (_LAUNCHER.format(python=python, module=module).encode(), 0o755)
        for program, module in _PROGRAMS.items()
    }
    source = resources.files("opslib.rehearsal.standin")
    library = f"{prefix}/lib/opslib"
    for package in (library, f"{library}/rehearsal", f"{library}/rehearsal/standin"):
        files[f"{package}/__init__.py"] = (b"", 0o644)
    wanted = {"ledger", *_PROGRAMS.values()}
    for entry in source.iterdir():
        module = entry.name.removesuffix(".py")
        if entry.name.endswith(".py") and (module in wanted or module.startswith("engine_")):
            files[f"{library}/rehearsal/standin/{entry.name}"] = (entry.read_bytes(), 0o644)
    settings = standin_settings(scenario, ledger_dir or default_ledger, clock_factor)
    version = scenario.figures["version"]
    packages = f"{prefix}/lib/python3.11/site-packages"
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    files[f"{packages}/vllm-{version}.dist-info/METADATA"] = (metadata.encode(), 0o644)
    files[f"{packages}/vllm/engine/arg_utils.py"] = (_flags_source().encode(), 0o644)
    files[f"{packages}/torch/version.py"] = (b"__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\n", 0o644)
    files[f"{prefix}/share/rehearsal.json"] = (json.dumps(settings, indent=2).encode() + b"\n", 0o644)
    return files


def _flags_source() -> str:
    """The engine's flags as the sources of an installed vLLM show them."""
    names = [f"--{entry.split()[0]}" for line in FLAGS.split("\n") for entry in line.split("|") if entry]
    return "".join(f"group.add_argument({name!r})\n" for name in [*names, *SHORT])


SettingsKey = Literal["scenario", "gpus", "ledger_dir", "clock_factor", "engine"]


def standin_settings(
    scenario: Scenario, ledger_dir: str, clock_factor: float | None = None
) -> dict[SettingsKey, object]:
    """The content of `rehearsal.json`: the one file through which the stand-ins find everything."""
    return {
        "scenario": scenario.name,
        "gpus": scenario.gpus,
        "ledger_dir": ledger_dir,
        "clock_factor": clock_factor or scenario.clock_factor,
        "engine": scenario.figures,
    }
