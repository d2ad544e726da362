"""Reads a whole record back: its facts, its events by line, and the text files of its evidence."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from opslib.domain.run_facts import KeptEvent, KeptRun
from opslib.errors import CouldNotFindOut
from opslib.records.folder import EVENTS_FILE, EVIDENCE_DIR, RECORD_FILE, RunFolder
from opslib.records.watch_file import watch_files

_TEXTS = {".json", ".jsonl", ".txt"}
_LARGEST_BYTES = 64 * 2**20  # a longer file is named by the record, and not read


def read_run(path: Path) -> KeptRun:
    """The record in a folder; raises CouldNotFindOut for one that can't be read, UnknownName where there is none."""
    record = RunFolder.open(path).read_record()
    if record is None:
        raise CouldNotFindOut(f"{path} holds no {RECORD_FILE}")
    return KeptRun(name=path.name, record=record, events=tuple(_events(path)), files=dict(_files(path)))


def _events(path: Path) -> Iterator[KeptEvent]:
    if not (path / EVENTS_FILE).is_file():
        return
    with suppress(OSError):
        for number, line in enumerate((path / EVENTS_FILE).read_bytes().splitlines(), 1):
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield KeptEvent(line=number, event=event)


def _files(path: Path) -> Iterator[tuple[str, str]]:
    for file in (*sorted((path / EVIDENCE_DIR).rglob("*")), *watch_files(path)):
        with suppress(OSError):
            if file.suffix in _TEXTS and file.is_file() and file.stat().st_size <= _LARGEST_BYTES:
                yield file.relative_to(path).as_posix(), file.read_text("utf-8", "replace")
