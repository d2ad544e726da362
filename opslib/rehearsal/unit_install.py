"""Units enabled and disabled: the links that a target starts them by at boot (systemd 252, install.c)."""

from pathlib import Path

from opslib.rehearsal.jobs import UnitRefused
from opslib.rehearsal.unit_config import UnitConfig
from opslib.rehearsal.unit_loading import load_unit

_NO_INSTALL_SECTION = """\
The unit files have no installation config (WantedBy=, RequiredBy=, Also=,
Alias= settings in the [Install] section, and DefaultInstance= for template
units). This means they are not meant to be enabled using systemctl.
\x20
Possible reasons for having this kind of units are:
• A unit may be statically enabled by being symlinked from another unit's
  .wants/ or .requires/ directory.
• A unit's purpose may be to act as a helper for some other unit which has
  a requirement dependency on it.
• A unit may be started when needed via activation (socket, path, timer,
  D-Bus, udev, scripted systemctl call, ...).
• In case of template units, the unit is meant to be enabled with some
  instance name specified.
"""
_WANTS = "multi-user.target.wants"


def enabled_units(unit_dir: Path) -> list[str]:
    """The units that start at boot, by name."""
    return sorted(link.name for link in (unit_dir / _WANTS).glob("*"))


def is_enabled(unit_dir: Path, name: str) -> bool:
    """Whether the unit is linked into the target that starts at boot."""
    return (unit_dir / _WANTS / name).is_symlink()


def unit_file_state(unit_dir: Path, config: UnitConfig) -> str:
    """enabled, disabled, static (no [Install] section), or empty for no file."""
    if not config.fragment_path:
        return ""
    if is_enabled(unit_dir, config.name):
        return "enabled"
    return "disabled" if config.wanted_by else "static"


def enable(unit_dir: Path, name: str) -> str:
    """Link the unit into its target; what systemctl says about it. Raises UnitRefused where it has no file."""
    config = _unit_on_disk(unit_dir, name, "enable")
    if not config.wanted_by:
        return _NO_INSTALL_SECTION
    link = unit_dir / _WANTS / name
    if link.is_symlink():
        return ""
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(unit_dir / name)
    return f"Created symlink {link} → {unit_dir / name}.\n"


def disable(unit_dir: Path, name: str) -> str:
    """Take the unit out of its target; what systemctl says about it. Raises UnitRefused where it has no file."""
    _unit_on_disk(unit_dir, name, "disable")
    link = unit_dir / _WANTS / name
    if not link.is_symlink():
        return ""
    link.unlink()
    return f'Removed "{link}".\n'


def _unit_on_disk(unit_dir: Path, name: str, verb: str) -> UnitConfig:
    """The unit as its files are now, which is what enabling goes by."""
    config = load_unit(unit_dir, name)
    if config.load_state == "not-found":
        raise UnitRefused(f"Failed to {verb} unit: Unit file {name} does not exist.\n", 1)
    return config
