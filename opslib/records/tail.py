"""Follows a record's event file while another process writes it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from opslib.records.folder import EVENTS_FILE


class EventTail:
    """Hands over each whole event once, in order."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """The events written since the last call; a line that isn't whole yet waits for the next."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        yield event
