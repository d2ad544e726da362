"""What a watch saw of a start, by its event file: GPU memory as it filled, systemd's lines where no evidence is."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from opslib.domain.facts.journal import JournalEntry
from opslib.domain.run_facts import KeptRun
from opslib.domain.run_rows import TimelineRow, offset_of, row_of, said

_GIB = 2**30
_MOVED_BYTES = 8 * _GIB  # a GPU that holds so much more or less is news


def watched_rows(run: KeptRun, *, is_whole: bool) -> Iterator[tuple[tuple[str, ...], TimelineRow]]:
    """The rows with what makes each the same as another record's; times are the host's, corrected."""
    for path, text in run.files.items():
        if not path.startswith("watch-"):
            continue
        used: dict[int, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            with suppress(ValueError, RecursionError, KeyError, TypeError):  # a torn line, or one of another version
                event = json.loads(line)
                at = datetime.fromisoformat(event["at"]) - offset_of(run)
                if event["event"] == "gpu" and (words := _moved(event, used)):
                    yield (run.record.host, path, str(number)), row_of(run, at, "gpu", words, path, line=number)
                elif event["event"] == "journal":
                    yield from _journal(run, event["entry"], path, number, is_whole=is_whole)


def _moved(event: Mapping[str, Any], used: dict[int, int]) -> str:
    """GPU memory in use, where it is much more or less than when it was told last; "" otherwise."""
    now = {int(gpu["index"]): int(gpu["memory_used_bytes"]) for gpu in event["gpus"]}
    if all(abs(size - used.get(index, 0)) < _MOVED_BYTES for index, size in now.items()):
        return ""
    used.update(now)
    told = ", ".join(f"GPU {index} {size / _GIB:.1f}" for index, size in now.items() if size >= _GIB / 10)
    return f"memory in use, GiB: {told or 'none on any GPU'}"


def _journal(
    run: KeptRun, fields: Mapping[str, Any], path: str, number: int, *, is_whole: bool
) -> Iterator[tuple[tuple[str, ...], TimelineRow]]:
    entry = JournalEntry.model_validate(fields)
    if entry.realtime_at is not None and (is_whole or entry.identifier == "systemd"):
        row = row_of(run, entry.realtime_at - offset_of(run), "journal", said(entry), path, line=number)
        yield (run.record.host, entry.cursor), row
