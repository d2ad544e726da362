"""Unit files loaded as systemd loads them: the fragment, then its drop-ins, then whether the whole makes sense."""

from collections.abc import Iterable
from pathlib import Path

from opslib.rehearsal.unit_config import Complaint, UnitConfig
from opslib.rehearsal.unit_directives import assign, is_section
from opslib.rehearsal.unit_syntax import logical_lines


def unit_paths(unit_dir: Path, name: str) -> tuple[Path, ...]:
    """The unit's file and its drop-ins, in the order in which they are read; those that exist."""
    drop_ins = sorted((unit_dir / f"{name}.d").glob("*.conf"))
    return tuple(path for path in (unit_dir / name, *drop_ins) if path.is_file())


def modification_times(paths: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """Path and modification time of each file: when it differs, the unit needs a daemon-reload."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths)


def load_unit(unit_dir: Path, name: str) -> UnitConfig:
    """The unit as systemd would load it now; `load_state` is not-found or bad-setting where it cannot."""
    paths = unit_paths(unit_dir, name)
    config = UnitConfig(name=name, description=name, modified_ns=modification_times(paths))
    if unit_dir / name not in paths:
        config.load_state = "not-found"
        return config
    config.fragment_path = str(unit_dir / name)
    config.drop_in_paths = tuple(str(path) for path in paths[1:])
    for path in paths:
        _read_into(config, str(path), path.read_text("utf-8", "replace"))
    _verify(config)
    return config


def _read_into(config: UnitConfig, path: str, text: str) -> None:
    known_section = True
    section = ""
    for number, line in logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            known_section = is_section(section)
            if not known_section:
                config.warnings.append(Complaint(path, number, f"Unknown section '{section}'. Ignoring."))
            continue
        key, separator, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not separator:
            config.warnings.append(Complaint(path, number, "Missing '=', ignoring line."))
        elif not section:
            config.warnings.append(Complaint(path, number, "Assignment outside of section. Ignoring."))
        elif known_section and not section.startswith("X-") and not key.startswith("X-"):
            assign(config, Complaint(path, number, ""), section, key, value)


def _verify(config: UnitConfig) -> None:
    is_oneshot = config.type == "oneshot"
    if config.load_state == "bad-setting":
        text = f"{config.name}: Unit configuration has fatal error, unit will not be started."
        config.warnings.append(Complaint("", 0, text, 3))
        return
    if not config.exec_start:
        reason = "Service has no ExecStart=, ExecStop=, or SuccessAction=."
    elif len(config.exec_start) > 1 and not is_oneshot:
        reason = "Service has more than one ExecStart= setting, which is only allowed for Type=oneshot services."
    elif is_oneshot and config.restart in {"always", "on-success"}:
        reason = (
            "Service has Restart= set to either always or on-success, which isn't allowed for Type=oneshot services."
        )
    else:
        return
    config.load_state = "bad-setting"
    config.warnings.append(Complaint("", 0, f"{config.name}: {reason} Refusing.", 3))
