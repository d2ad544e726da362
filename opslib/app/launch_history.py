"""How long the phases of earlier launches took on a host, from the records of its runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from opslib.domain.launch_eta import durations_of
from opslib.domain.launch_phases import spans_of
from opslib.errors import OpslibError
from opslib.records.folder import RunFolder, safe_name

_LAUNCHES = ("launch", "relaunch")
_N_LOOKED_AT = 50  # records of the unit
_N_LAST = 5  # engines and flags change; older launches tell little


def read_durations(runs_dir: Path, host: str, unit: str) -> tuple[dict[str, float], ...]:
    """Seconds by phase of the last launches of `unit` on `host` that became ready, newest first."""
    named = f"*-{safe_name(host)}-{safe_name(unit)}-*/record.json"
    folders = sorted((path.parent for path in runs_dir.glob(named)), reverse=True)
    found: list[dict[str, float]] = []
    for folder in folders[:_N_LOOKED_AT]:
        found += list(_durations(folder, host, unit))
        if len(found) >= _N_LAST:
            break
    return tuple(found[:_N_LAST])


def _durations(folder: Path, host: str, unit: str) -> Iterator[dict[str, float]]:
    try:
        record = RunFolder.open(folder).read_record()
    except OpslibError:
        return
    if record is None or (record.host, record.unit) != (host, unit):
        return
    for section in record.sections:
        value = section.value
        if section.name in _LAUNCHES and isinstance(value, Mapping) and value.get("state") == "ready":
            durations = durations_of(spans_of(value.get("phases") or ()))
            if durations:
                yield durations
