"""Finds one record by what an operator would type: `last`, `last~1`, a path, a folder's name or a part of it."""

import re
from pathlib import Path

from opslib.domain.seal import SEAL_FILE
from opslib.errors import UnknownName
from opslib.records.folder import RECORD_FILE

_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d)?)?)?")
_LAST = re.compile(r"last(?:~(\d{1,4}))?")
_NAMED = 3  # of the records that a name is a part of


def find_record(runs_dir: Path, name: str) -> Path:
    """The record's folder; raises UnknownName where none or several are meant.

    `last` is the newest by the time in its name, `last~1` the one before; a time may be typed as the list shows it
    ("2026-11-29T18:46:05"). A path may also be that of a file in the folder.
    """
    path = Path(name).expanduser()
    for place in (path, path.parent if path.is_file() else path):
        if _is_record(place):
            return place.resolve()
    names = record_names(runs_dir)
    if found := _LAST.fullmatch(name):
        back = int(found[1] or 0)
        if back < len(names):
            return (runs_dir / names[back]).resolve()
        raise UnknownName(f"{name}: there {_are(len(names))} in {runs_dir}")
    if _TIME.fullmatch(name):
        name = name.replace("-", "").replace(":", "").replace(" ", "T")
    meant = [known for known in names if known == name] or [known for known in names if name and name in known]
    if len(meant) == 1:
        return (runs_dir / meant[0]).resolve()
    if meant:
        more = " ..." if len(meant) > _NAMED else ""
        raise UnknownName(
            f"{name!r} is a part of {len(meant)} records' names: {', '.join(meant[:_NAMED])}{more}",
            hint="say more of the name, newest first here; opslib runs lists them, --host HOST those of one host",
        )
    raise UnknownName(f"no record {name!r} in {runs_dir}", hint="opslib runs lists them; `last` is the newest")


def record_names(runs_dir: Path) -> list[str]:
    """The names of all record folders, newest first."""
    try:
        return sorted((path.name for path in runs_dir.iterdir() if _is_record(path)), reverse=True)
    except OSError:
        return []


def _is_record(path: Path) -> bool:
    return (path / RECORD_FILE).is_file() or is_sealed(path)


def is_sealed(path: str | Path) -> bool:
    """Whether a folder was sealed as a record, whatever became of its facts."""
    return Path(path, SEAL_FILE).is_file()


def _are(n_records: int) -> str:
    return "is no record" if not n_records else f"are {n_records} records" if n_records > 1 else "is 1 record"


def time_of(name: str) -> str:
    """The time in a record folder's name, as the list shows it; the name itself where it has none.

    >>> time_of("20261129T184605Z-gpu-a-vllm-90-deploy"), time_of("kept")
    ('2026-11-29T18:46:05', 'kept')
    """
    found = re.match(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", name)
    return "{}-{}-{}T{}:{}:{}".format(*found.groups()) if found else name
