"""journalctl over the rehearsal host's journal, for the options that the kit uses (journalctl(1), systemd 252)."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from opslib.rehearsal.journal_store import (
    Entry,
    JournalStore,
    Match,
    entry_json,
    field_matches,
    is_printable,
    unit_matches,
)
from opslib.rehearsal.options import NO_VALUE, VALUE, OptionRefused, Parsed, parse_options
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_semantics import parse_time_span
from opslib.rehearsal.unit_syntax import unit_name

_OPTIONS = {
    "--output": VALUE,
    "--unit": VALUE,
    "--after-cursor": VALUE,
    "--cursor": VALUE,
    "--lines": r"\d+|all",
    "--follow": NO_VALUE,
    "--no-tail": NO_VALUE,
    "--since": VALUE,
    "--grep": VALUE,
    "--until": VALUE,
    "--boot": r"-?\d+|[0-9a-f]{32}|[0-9a-f-]{36}|all",
    "--dmesg": NO_VALUE,
    "--no-pager": NO_VALUE,
    "--quiet": NO_VALUE,
    "--priority": VALUE,
    "--all": NO_VALUE,
    "--show-cursor": NO_VALUE,
    "--output-fields": VALUE,
    "--utc": NO_VALUE,
    "--reverse": NO_VALUE,
    "--system": NO_VALUE,
}
_SHORT = {
    "o": "--output", "u": "--unit", "c": "--cursor", "n": "--lines", "f": "--follow", "S": "--since", "U": "--until",
    "b": "--boot", "k": "--dmesg", "q": "--quiet", "p": "--priority", "a": "--all", "r": "--reverse",
}  # fmt: skip
_PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_BATCH = 200
_TIME_FORMATS = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


async def journalctl(store: JournalStore, argv: Sequence[str], terminal: Terminal) -> int:
    """Carry out one journalctl command line and return its exit status."""
    try:
        parsed = parse_options(argv, _OPTIONS, _SHORT)
        show = _writer(parsed)
        selected = _selection(store, parsed)
        start, count = _start(store, parsed, selected)
    except (OptionRefused, ValueError) as refusal:
        terminal.err(f"{refusal}\n")
        return 1
    end = len(store.entries)
    entries = [entry for entry in store.entries[start:end] if selected(entry)]
    if "--reverse" in parsed:
        entries.reverse()
    for number, entry in enumerate(entries[:count], start=1):
        terminal.out(show(entry) + "\n")
        if number % _BATCH == 0:  # a long answer must not keep the host waiting
            await terminal.drain()
            await asyncio.sleep(0)
    if "--follow" in parsed:
        await _follow(store, end, selected, lambda entry: terminal.out(show(entry) + "\n"), terminal)
        return 0
    is_short = parsed.last("--output", "short").startswith("short")
    if not entries[:count] and is_short and "--quiet" not in parsed:
        terminal.out("-- No entries --\n")
    elif "--grep" in parsed and not entries[:count]:
        return 1
    elif "--show-cursor" in parsed and entries[:count]:
        terminal.out(f"-- cursor: {entries[:count][-1].cursor}\n")
    return 0


async def _follow(
    store: JournalStore, position: int, selected: Match, show: Callable[[Entry], None], terminal: Terminal
) -> None:
    wake = asyncio.Event()
    unsubscribe = store.subscribe(wake.set)
    gone = asyncio.ensure_future(terminal.gone.wait())
    try:
        while not terminal.gone.is_set():
            while position < len(store.entries):
                entry, position = store.entries[position], position + 1
                if selected(entry):
                    show(entry)
            await terminal.drain()
            wake.clear()
            waiting = asyncio.ensure_future(wake.wait())
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
    finally:
        gone.cancel()
        unsubscribe()


def _selection(store: JournalStore, parsed: Parsed) -> Match:
    """All conditions of the command line, which hold together; several -u are alternatives."""
    conditions: list[Match] = [field_matches(parsed.words)]
    units = [unit_matches(unit_name(name)) for name in parsed.all("--unit")]
    if units:
        conditions.append(lambda entry: any(match(entry) for match in units))
    if "--dmesg" in parsed:
        conditions.append(field_matches(["_TRANSPORT=kernel"]))
    if "--boot" in parsed or "--dmesg" in parsed:
        _check_boot(store, parsed.last("--boot"))
        if parsed.last("--boot") != "all":
            conditions.append(field_matches([f"_BOOT_ID={store.boot_id}"]))
    if "--priority" in parsed:
        low, high = _priority_range(parsed.last("--priority"))
        conditions.append(lambda entry: low <= int(entry.text("PRIORITY") or -1) <= high)
    if "--until" in parsed:
        until_us = _moment_us(parsed.last("--until"))
        conditions.append(lambda entry: entry.realtime_us <= until_us)
    if "--since" in parsed:
        since_us = _moment_us(parsed.last("--since"))
        conditions.append(lambda entry: entry.realtime_us >= since_us)
    if "--grep" in parsed:
        pattern = re.compile(parsed.last("--grep"), re.IGNORECASE if parsed.last("--grep").islower() else 0)
        conditions.append(lambda entry: pattern.search(entry.text("MESSAGE") or "") is not None)
    return lambda entry: bool(entry.fields) and all(condition(entry) for condition in conditions)


def _start(store: JournalStore, parsed: Parsed, selected: Match) -> tuple[int, int | None]:
    """Index of the first entry to look at, and how many selected ones to show (None: all)."""
    lines = _lines(parsed)
    for option, after in (("--cursor", False), ("--after-cursor", True)):
        if option in parsed:
            position = store.position(parsed.last(option), after=after)
            if position is None:
                raise ValueError("Failed to seek to cursor: Invalid argument")
            return position, None if "--follow" in parsed else lines
    if lines is None or "--since" in parsed or "--reverse" in parsed:
        return 0, lines
    positions = [index for index, entry in enumerate(store.entries) if selected(entry)]
    return (positions[-lines:] or [len(store.entries)])[0] if lines else len(store.entries), lines


def _lines(parsed: Parsed) -> int | None:
    if "--lines" in parsed:
        text = parsed.last("--lines") or "10"
        if text != "all" and not text.isdigit():
            raise ValueError(f"Failed to parse lines '{text}'")
        return None if text == "all" else int(text)
    is_tail = "--follow" in parsed and "--no-tail" not in parsed and "--since" not in parsed
    return 10 if is_tail else None


def _check_boot(store: JournalStore, boot: str) -> None:
    if boot.replace("-", "") not in {"", "0", "all", store.boot_id} or boot.startswith("-"):
        reason = "No such boot ID in journal"
        raise ValueError(f"Data from the specified boot ({boot}) is not available: {reason}")


def _priority_range(text: str) -> tuple[int, int]:
    def number(word: str) -> int:
        if word.isdigit() and int(word) < len(_PRIORITIES):
            return int(word)
        if word not in _PRIORITIES:
            raise ValueError(f"Unknown log level {text}")
        return _PRIORITIES.index(word)

    low, separator, high = text.partition("..")
    if not separator:
        return 0, number(text)
    first, second = sorted((number(low), number(high)))
    return first, second


def _moment_us(text: str) -> int:
    """Microseconds since the epoch of an absolute UTC time, `@seconds`, `-5min`, "now", "today" or "yesterday"."""
    text = text.strip().removesuffix(" UTC")
    now = datetime.fromtimestamp(time.time(), UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if text in named:
        return round(named[text].timestamp() * 1e6)
    relative = re.fullmatch(r"([-+])(.+)|(.+) ago", text)
    try:
        if text.startswith("@"):
            return round(float(text[1:]) * 1e6)
        if relative:
            sign = 1 if relative[1] == "+" else -1
            return round((now.timestamp() + sign * parse_time_span(relative[2] or relative[3])) * 1e6)
    except ValueError:
        pass
    for pattern in _TIME_FORMATS:
        try:
            return round(datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp() * 1e6)
        except ValueError:
            continue
    raise ValueError(f"Failed to parse timestamp: {text}")


def _writer(parsed: Parsed) -> Callable[[Entry], str]:
    mode = parsed.last("--output", "short")
    show_all = "--all" in parsed
    fields = [name for value in parsed.all("--output-fields") for name in value.split(",")]
    writers: dict[str, Callable[[Entry], str]] = {
        "json": lambda entry: entry_json(entry, show_all=show_all, fields=fields),
        "cat": lambda entry: _message(entry, show_all=True),
        "short": lambda entry: _short_line(entry, "%b %d %H:%M:%S", show_all=show_all),
        "short-iso": lambda entry: _short_line(entry, "%Y-%m-%dT%H:%M:%S+0000", show_all=show_all),
    }
    if mode not in writers:
        raise OptionRefused(f"--output={mode}")
    return writers[mode]


def _short_line(entry: Entry, time_format: str, *, show_all: bool) -> str:
    at = datetime.fromtimestamp(entry.realtime_us / 1e6, UTC).strftime(time_format)
    pid = entry.text("_PID")
    who = entry.text("SYSLOG_IDENTIFIER") + (f"[{pid}]" if pid else "")
    lead = f"{at} {entry.text('_HOSTNAME')} {who}: "
    return lead + _message(entry, show_all=show_all).replace("\t", " " * 8).replace("\n", "\n" + " " * len(lead))


def _message(entry: Entry, *, show_all: bool) -> str:
    data = next(iter(entry.values("MESSAGE")), b"")
    text = data.decode("utf-8", "surrogateescape")
    is_text = is_printable(text) and not any("\udc80" <= ch <= "\udcff" for ch in text)
    return text if show_all or is_text else f"[{len(data)}B blob data]"
