"""The rehearsal host's journal: an append-only file of entries with journald's fields, cursors and matches."""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

FieldValue: TypeAlias = str | bytes | tuple[str | bytes, ...]
Match: TypeAlias = "Callable[[Entry], bool]"

_JSON_THRESHOLD = 4096  # journalctl: a field of this size (name and "=" included) is null without --all
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_PRINTABLE_CONTROLS = {"\t", "\n"}


@dataclass(frozen=True)
class Entry:
    """One journal entry: its sequence number and its fields, addresses (`__CURSOR` ...) included."""

    sequence: int
    realtime_us: int
    monotonic_us: int
    fields: Mapping[str, FieldValue]

    def values(self, name: str) -> tuple[bytes, ...]:
        """All values of a field as bytes; empty where the entry has no such field."""
        value = self.fields.get(name)
        if value is None:
            return ()
        return tuple(map(_as_bytes, value if isinstance(value, tuple) else (value,)))

    def text(self, name: str) -> str:
        """The first value of a field as text; empty where there is none."""
        return next((value.decode("utf-8", "replace") for value in self.values(name)), "")

    @property
    def cursor(self) -> str:
        """The address of this entry, as `--after-cursor` takes it."""
        return self.text("__CURSOR")


class JournalStore:
    """Entries of one boot in the order written; `append` wakes those who follow."""

    def __init__(self, path: Path | None = None, *, hostname: str = "rehearsal") -> None:
        self.entries: list[Entry] = []
        self.boot_id = machine_boot_id()
        self.hostname = hostname
        self.clock_set_by_s = 0.0
        self._source_id = secrets.token_hex(16)
        self._machine_id = secrets.token_hex(16)
        self._listeners: list[Callable[[], None]] = []
        self._file = path.open("a", encoding="utf-8") if path else None

    def now_s(self) -> float:
        """The host's own wall clock, in seconds since the epoch."""
        return time.time() + self.clock_set_by_s

    def append(self, fields: Mapping[str, FieldValue]) -> Entry:
        """Write one entry, stamped with the machine's clocks, the boot id and a new cursor."""
        sequence = len(self.entries) + 1
        realtime_us, monotonic_us = int(self.now_s() * 1e6), time.monotonic_ns() // 1000
        cursor = (
            f"s={self._source_id};i={sequence:x};b={self.boot_id};m={monotonic_us:x};t={realtime_us:x};"
            f"x={secrets.randbits(64):x}"
        )
        stamped: dict[str, FieldValue] = {
            "__CURSOR": cursor,
            "__REALTIME_TIMESTAMP": str(realtime_us),
            "__MONOTONIC_TIMESTAMP": str(monotonic_us),
            "_BOOT_ID": self.boot_id,
            "_MACHINE_ID": self._machine_id,
            "_HOSTNAME": self.hostname,
            "_RUNTIME_SCOPE": "system",
            **fields,
        }
        entry = Entry(sequence, realtime_us, monotonic_us, stamped)
        self.entries.append(entry)
        if self._file:
            self._file.write(entry_json(entry, show_all=True) + "\n")
            self._file.flush()
        for listener in tuple(self._listeners):
            listener()
        return entry

    def forget(self) -> None:
        """Lose all entries so far, as `--rotate` and then `--vacuum-size=1` do: their places stay, nothing is there."""
        self.entries[:] = [replace(entry, fields={}) for entry in self.entries]

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each append, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def position(self, cursor: str, *, after: bool) -> int | None:
        """Where reading starts for a cursor (index into `entries`); None when the text is no cursor.

        A cursor of another journal is sought by its time, as journald does.
        """
        parts = dict(part.partition("=")[::2] for part in cursor.split(";"))
        try:
            sequence, realtime_us = int(parts["i"], 16), int(parts["t"], 16)
        except (KeyError, ValueError):
            return None
        if parts.get("s") == self._source_id:
            return min(sequence if after else sequence - 1, len(self.entries))
        return self.position_at(realtime_us)

    def position_at(self, realtime_us: int) -> int:
        """Index of the first entry at or after a wall-clock time (microseconds since the epoch)."""
        return next((i for i, e in enumerate(self.entries) if e.realtime_us >= realtime_us), len(self.entries))

    def close(self) -> None:
        """Close the file; the entries stay readable in memory."""
        if self._file:
            self._file.close()
            self._file = None


def machine_boot_id() -> str:
    """Tells this machine's boot id (32 hexadecimal digits), so that journal and kernel agree; random without /proc."""
    try:
        return _BOOT_ID_FILE.read_text().strip().replace("-", "")
    except OSError:
        return secrets.token_hex(16)


def field_matches(terms: Sequence[str]) -> Match:
    """The predicate of `FIELD=VALUE` terms and `+`: same field or, other field and, `+` or (journalctl(1)).

    Raises ValueError with journalctl's sentence for a term that is no match.
    """
    groups: list[dict[str, set[bytes]]] = [{}]
    for term in terms:
        if term == "+":
            if not groups[-1]:
                raise ValueError('"+" can only be used between terms')
            groups.append({})
            continue
        name, separator, value = term.partition("=")
        if not separator:
            raise ValueError(f"Failed to add match '{term}': Invalid argument")
        groups[-1].setdefault(name, set()).add(value.encode("utf-8", "surrogateescape"))
    groups = [group for group in groups if group]

    def matches(entry: Entry) -> bool:
        return not groups or any(
            all(not wanted.isdisjoint(entry.values(name)) for name, wanted in group.items()) for group in groups
        )

    return matches


def unit_matches(unit: str) -> Match:
    """What `-u UNIT` selects: lines of the unit's processes, the manager's own about it, and other daemons' of root."""
    of_others = ["+", "_UID=0", f"OBJECT_SYSTEMD_UNIT={unit}"]
    return field_matches([f"_SYSTEMD_UNIT={unit}", "+", "_PID=1", f"UNIT={unit}", *of_others])


def entry_json(entry: Entry, *, show_all: bool = False, fields: Iterable[str] = ()) -> str:
    """The entry as `journalctl -o json` prints it.

    Values with control characters (but tab and newline) or invalid UTF-8 are arrays of byte numbers, repeated
    fields are arrays, and a field of 4096 bytes or more is null unless `show_all` (systemd 252, logs-show.c).
    """
    wanted = set(fields)
    return json.dumps(
        {
            name: _json_value(name, value, show_all=show_all)
            for name, value in entry.fields.items()
            if not wanted or name in wanted or name.startswith("__") or name == "_BOOT_ID"
        },
        ensure_ascii=False,
    )


def _json_value(name: str, value: FieldValue, *, show_all: bool) -> object:
    if isinstance(value, tuple):
        return [_json_value(name, each, show_all=show_all) for each in value]
    data = _as_bytes(value)
    if not show_all and len(name) + 1 + len(data) >= _JSON_THRESHOLD:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
    return text if is_printable(text) else list(data)


def is_printable(text: str) -> bool:
    r"""Whether journalctl prints a value as text: no control characters but tab and newline.

    >>> is_printable("50%\r100%"), is_printable("a\tb\nc")
    (False, True)
    """
    return not any((ch < " " and ch not in _PRINTABLE_CONTROLS) or "\x7f" <= ch <= "\x9f" for ch in text)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
