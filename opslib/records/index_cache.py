"""A cache of one value per record in an SQLite file: never needed, never trusted against the record's own stamp."""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from opslib.domain.states import Value

Entry = TypeVar("Entry", bound=Value)
Stamp = tuple[int, int]  # time of the last change in ns, size in bytes

_TABLE = "CREATE TABLE IF NOT EXISTS records (name TEXT PRIMARY KEY, mtime_ns INTEGER, size INTEGER, entry TEXT)"
_BUSY_S = 1.0  # another list may be writing; then this one does without


class IndexCache(Generic[Entry]):
    """What is known of each record by its name; any fault of the file means that less is known, and nothing else."""

    def __init__(self, path: Path, kind: type[Entry]) -> None:
        self.names: set[str] = set()  # all that the file holds
        self._path = path
        self._kind = kind
        # a file made by other code is none: its entries lack what this one asks for
        self._version = zlib.crc32(" ".join(kind.model_fields).encode()) & 0x7FFFFFFF

    def load(self, stamps: Mapping[str, Stamp]) -> dict[str, Entry]:
        """The entries of those records whose stamp is still the same."""
        if not self._path.is_file():
            return {}
        known: dict[str, Entry] = {}
        try:
            with self._opened() as connection:
                for name, mtime_ns, size, entry in connection.execute("SELECT * FROM records"):
                    self.names.add(name)
                    if stamps.get(name) == (mtime_ns, size):
                        known[name] = self._kind.model_validate_json(entry)
        except (sqlite3.Error, ValueError):
            return self._start_anew()
        return known

    def store(self, entries: Mapping[str, tuple[Stamp, Entry]], *, gone: set[str]) -> None:
        """Add or replace entries, and drop those of records that are gone; a file that can't be written is left."""
        # a folder whose name is no UTF-8 is read anew each time: neither JSON nor SQLite holds it
        kept = {
            name: known for name, known in entries.items() if not any("\ud800" <= sign <= "\udfff" for sign in name)
        }
        if not kept and not gone:
            return
        rows = [(name, *stamp, entry.model_dump_json()) for name, (stamp, entry) in kept.items()]
        with suppress(sqlite3.Error), self._opened() as connection:
            connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", rows)
            connection.executemany("DELETE FROM records WHERE name = ?", [(name,) for name in gone])

    def _start_anew(self) -> dict[str, Entry]:
        self.names = set()
        with suppress(OSError):
            self._path.unlink()
        return {}

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as connection, connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != self._version:
                connection.execute("DROP TABLE IF EXISTS records")
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA user_version = {self._version}")
            yield connection
