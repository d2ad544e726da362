"""`systemd-analyze verify FILE` over the unit reader of this host (systemd-analyze(1), systemd 252)."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from opslib.rehearsal.options import OptionRefused
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_loading import load_unit


async def systemd_analyze(argv: Sequence[str], terminal: Terminal) -> int:
    """What systemd complains about when it reads the unit; exit status 1 where the unit can't be started."""
    if len(argv) != 2 or argv[0] != "verify":
        terminal.err(f"{OptionRefused(argv[0] if argv else 'systemd-analyze')}\n")
        return 1
    path = Path(argv[1])
    config = load_unit(path.parent, path.name)
    for complaint in config.warnings:
        where = f"{complaint.path}:{complaint.line}: " if complaint.path else ""
        terminal.err(f"{where}{complaint.text}\n")
    if config.load_state != "loaded":
        terminal.err(f"Unit {path.name} has a bad unit file setting.\n")
        return 1
    missing = [
        command.path for command in (*config.exec_start_pre, *config.exec_start) if not _is_program(command.path)
    ]
    for name in missing:
        terminal.err(f"{path.name}: Command {name} is not executable: No such file or directory\n")
    return 1 if missing else 0


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) if "/" in path else shutil.which(path) is not None
