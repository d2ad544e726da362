"""What the journal of a unit says: `journalctl` as JSON, read into entries."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from opslib.domain.facts.systemd import unit_name
from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer

# What `entry_of` reads; the others cost a follower several times as many bytes.
_READ_FIELDS = (
    "MESSAGE,PRIORITY,_PID,SYSLOG_PID,SYSLOG_IDENTIFIER,_COMM,UNIT,USER_UNIT,_SYSTEMD_UNIT,_SYSTEMD_USER_UNIT,"
    "INVOCATION_ID,USER_INVOCATION_ID,_SYSTEMD_INVOCATION_ID,_BOOT_ID,_TRANSPORT,MESSAGE_ID,JOB_TYPE,JOB_RESULT"
)
_FORMAT = ("journalctl", "--output=json", "--all", "--no-pager")  # without --all, fields over 4096 bytes are null


class JournalEntry(Value):
    """One journal entry; `is_missing` where the message was null, that is evidence which exists but was not read."""

    message: str
    is_missing: bool = False
    priority: int | None = None
    cursor: str = ""
    realtime_at: datetime | None = None  # aware UTC
    pid: int | None = None
    identifier: str = ""
    unit: str = ""
    invocation_id: str = ""
    boot_id: str = ""
    transport: str = ""
    message_id: str = ""
    job_type: str = ""
    job_result: str = ""
    line: int | None = None  # 0-based position in the input that it was read from, where that is known

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel wrote it (such entries carry neither unit nor invocation)."""
        return self.transport == "kernel"


def journal_command(
    unit: str,
    *,
    invocation_id: str | None = None,
    after_cursor: str | None = None,
    lines: int | None = None,
    follow: bool = False,
    since: datetime | None = None,
) -> tuple[str, ...]:
    """Asks for the entries of a unit, or of one invocation of it (systemd's own lines about it included)."""
    argv = [*_FORMAT]
    if follow:
        argv += [
            f"--output-fields={_READ_FIELDS}",
            "--follow",
            "--no-tail",
        ]  # --follow alone shows ten old lines only, also after a cursor
    if lines is not None:
        argv.append(f"--lines={lines}")
    if since is not None:
        argv.append(f"--since=@{since.timestamp():.6f}")
    if after_cursor:
        argv.append(f"--after-cursor={after_cursor}")
    if invocation_id:
        return (*argv, f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}")
    return (*argv, f"--unit={unit_name(unit)}")


def newest_entry_command(unit: str = "") -> tuple[str, ...]:
    """Asks for the newest entry of a unit (of the whole journal without one), whose cursor marks "now".

    To read a unit's entries on, the cursor must be one of its own: `--after-cursor` with an entry that the filter
    doesn't match passes over the first one that it does (seen with systemd 252).
    """
    return (*_FORMAT, "--lines=1", *([f"--unit={unit_name(unit)}"] if unit else []))


def entry_at_command(unit: str, cursor: str) -> tuple[str, ...]:
    """Asks for the entry at a cursor, or the one that is nearest where that one is gone."""
    return (*_FORMAT, f"--cursor={cursor}", "--lines=1", f"--unit={unit_name(unit)}")


def kernel_command(since: datetime, until: datetime) -> tuple[str, ...]:
    """Asks for kernel messages of a time span; they match no unit filter."""
    return (
        *_FORMAT,
        f"--since=@{since.timestamp():.6f}",
        f"--until=@{until.timestamp():.6f}",
        "_TRANSPORT=kernel",
    )


def parse_journal_entry(line: bytes | str, *, index: int | None = None) -> JournalEntry:
    """Reads one line of `journalctl --output=json`.

    Messages given as byte numbers are decoded, the first of a repeated field counts. Raises UnexpectedAnswer where
    the line is no JSON object. Source: systemd.io/JOURNAL_EXPORT_FORMATS and journalctl(1), `--output=json`.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise UnexpectedAnswer(f"journalctl answered no JSON: {line[:120]!r}") from None
    if not isinstance(fields, dict):
        raise UnexpectedAnswer(f"journalctl answered no JSON object: {line[:120]!r}")
    return entry_of(fields, index=index)


def parse_journal(text: str) -> tuple[JournalEntry, ...]:
    """Reads a whole answer of `journalctl --output=json`, one entry per line."""
    return tuple(parse_journal_entry(line) for line in text.splitlines() if line.strip())


def entry_of(fields: Mapping[str, object], *, index: int | None = None) -> JournalEntry:
    """The entry that these journal fields describe."""
    raw = fields.get("MESSAGE", "")
    return JournalEntry(
        message=_text(raw),
        is_missing=raw is None,
        priority=_number(fields.get("PRIORITY")),
        cursor=_text(fields.get("__CURSOR")),
        realtime_at=_time(fields.get("__REALTIME_TIMESTAMP")),
        pid=_number(fields.get("_PID") or fields.get("SYSLOG_PID")),
        identifier=_text(fields.get("SYSLOG_IDENTIFIER") or fields.get("_COMM")),
        unit=_text(_first(fields, "UNIT", "USER_UNIT", "_SYSTEMD_USER_UNIT", "_SYSTEMD_UNIT")),
        invocation_id=_text(_first(fields, "INVOCATION_ID", "USER_INVOCATION_ID", "_SYSTEMD_INVOCATION_ID")),
        boot_id=_text(fields.get("_BOOT_ID")),
        transport=_text(fields.get("_TRANSPORT")),
        message_id=_text(fields.get("MESSAGE_ID")),
        job_type=_text(fields.get("JOB_TYPE")),
        job_result=_text(fields.get("JOB_RESULT")),
        line=index,
    )


def _first(fields: Mapping[str, object], *names: str) -> object:
    return next((fields[name] for name in names if fields.get(name)), None)


def _text(value: object) -> str:
    """A field's text: bytes come as a list of numbers, a repeated field as a list of values."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value:
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return _text(value[0])
    return "" if value is None or isinstance(value, Sequence | Mapping) else str(value)


def _number(value: object) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _time(value: object) -> datetime | None:
    microseconds = _number(value)
    if microseconds is None:
        return None
    try:
        return datetime.fromtimestamp(microseconds / 1e6, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
