"""The notify shim as the one file that lies on a host: its modules, and the table of phases, joined."""

import json
from functools import cache
from importlib.resources import files

from opslib.domain.host import Host
from opslib.domain.launch_phases import shim_table

_MODULES = (  # each after those that it needs
    *("processes", "unit_processes", "engine_argv", "watch_probe"),  # the tracker's, too
    *("shim_lines", "shim_movement", "notify_shim"),
)
_HEAD = '''\
#!/usr/bin/env python3
"""Runs an engine for systemd under Type=notify; written by opslib, Python 3.8 or newer, standard library only.

notify_shim.py [--stall-s S] [--longest-s S] [--health-path PATH] -- ENGINE ARGUMENTS...
"""

import json
import sys
import types

for name in ("opslib", "opslib.onhost"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []


def register(name, source):
    module = sys.modules["opslib.onhost." + name] = types.ModuleType("opslib.onhost." + name)
    exec(compile(source, "opslib/onhost/" + name + ".py", "exec"), module.__dict__)


'''
_FOOT = """\
PHASES = json.loads(r'''{phases}''')

if __name__ == "__main__":
    sys.exit(sys.modules["opslib.onhost.notify_shim"].main({{"argv": sys.argv[1:], "phases": PHASES}}))
"""


def shim_path(host: Host) -> str:
    """Where the notify shim lies on a host."""
    return f"{host.settings.state_dir}/notify_shim.py"


def shim_command(host: Host, *, stall_s: int) -> tuple[str, ...]:
    """What stands before the engine's command line in ExecStart=."""
    python = host.settings.python
    program = (python,) if python.startswith("/") else ("/usr/bin/env", python)
    return (*program, shim_path(host), "--stall-s", str(stall_s), "--")


@cache
def shim_text() -> str:
    """The shim's whole text."""
    sources = [_source(name) for name in _MODULES]
    parts = [f"register({name!r}, r'''\n{source}''')\n\n" for name, source in zip(_MODULES, sources, strict=True)]
    return _HEAD + "".join(parts) + _FOOT.format(phases=json.dumps(shim_table(), indent=1, ensure_ascii=True))


def _source(name: str) -> str:
    return files("opslib.onhost").joinpath(f"{name}.py").read_text("utf-8")
