"""An inventory file for one host of the rig, as an operator would write it."""

import json
from pathlib import Path

from opslib.domain.host import HostSettings


def write_inventory(path: Path, alias: str, settings: HostSettings) -> Path:
    """Write `path` as a hosts.toml that names one host; returns `path`."""
    fields = settings.model_dump(exclude={"alias", "environment"}, exclude_none=True, exclude_defaults=True)
    lines = [f"[hosts.{alias}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    lines += [f"environment.{name} = {json.dumps(value)}" for name, value in settings.environment.items()]
    path.write_text("\n".join(lines) + "\n")
    return path
