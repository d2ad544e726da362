"""Journal entries as lines of a story: who speaks, about which start, and what was printed around it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from opslib.domain.engine_log import parse_log_line, phase_of
from opslib.domain.facts.journal import JournalEntry

_SYSTEMD_TEXT = re.compile(
    r"[\w@.:\\-]+\.(?:service|scope|slice): |(?:Started|Starting|Stopping|Stopped|Failed to start) \S"
)
_KERNEL_STAMP = re.compile(r"\[(?: *\d{1,8}\.\d{6}|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")  # dmesg, dmesg -T
_KERNEL_TEXT = re.compile(
    r"\s*NVRM: |oom-kill:|Out of memory: Kill|Memory cgroup out of memory|amdgpu |\w+ invoked oom-"
)
_OTHERS = frozenset({"sudo", "sshd", "CRON", "cron", "systemd-logind", "rsyslogd", "systemd-journald", "dockerd"})
_NEW_RUN = re.compile(
    r"(?:vLLM API server version |[▄█▀ ]{6,40}version \d|server_args=ServerArgs\(|^Args \{|^build: \d+ \()"
)
_STARTED = re.compile(r"(?:Started|Starting) (?!.*(?:Session|User Manager|session ))")
_NEIGHBOUR_LINES = 10  # a program that says less in pasted text is a tool, not a second server
_LINE_MAX = 48 * 1024 - 4  # bytes at which journald breaks a line (journald.conf(5), LineMax=), inside no character
_FRAMES_KEPT = 40
_MOST_FRAMES = 200  # lines of a traceback through compiled layers: what was asked for stands at its head
_TRACEBACK = "Traceback (most recent call last)"
_UNSEEN = "none"
_QUIET = frozenset({"INFO", "DEBUG", "WARNING"})


@dataclass(slots=True)
class Line:
    """One line of the story; `index` is its 0-based place in the input."""

    index: int
    text: str
    process: str
    identifier: str
    key: str  # lines with the same key come from one process
    level: str
    voice: str  # "program" | "systemd" | "kernel" | "other"
    invocation_id: str
    unit: str
    logged_at: str
    is_missing: bool
    phase: str = _UNSEEN


@dataclass(slots=True)
class Run:
    """The lines of one start, in order, with the kernel's lines of its time."""

    invocation_id: str
    lines: list[Line]
    unit: str = ""
    has_neighbour: bool = False  # another unit started or ran between its lines

    def frames_before(self, position: int) -> str:
        """What the same process printed just before the line at `position` (its whole traceback), and that line."""
        line = self.lines[position]
        found: list[str] = []
        is_whole = False
        for earlier in reversed(self.lines[max(0, position - 16 * _FRAMES_KEPT) : position + 1]):
            if earlier.key == line.key and (earlier.level not in _QUIET or earlier is line):
                found.append(earlier.text)
                is_whole |= earlier.text.startswith(_TRACEBACK)
                if len(found) > (_FRAMES_KEPT if is_whole else _MOST_FRAMES):
                    break
        return "\n".join(reversed(found))

    def heading_of(self, position: int) -> str:
        """What its process said just before the traceback in which the line at `position` stands, "" for none."""
        key, is_found = self.lines[position].key, False
        for earlier in reversed(self.lines[max(0, position - 16 * _FRAMES_KEPT) : position + 1]):
            if earlier.key == key and is_found:
                return earlier.text
            is_found |= earlier.key == key and earlier.text.startswith(_TRACEBACK)
        return ""


def read_lines(entries: Iterable[JournalEntry]) -> Iterator[Line]:
    """The entries without frames, prefixes and levels."""
    broken: dict[int | None, str] = {}  # by process: the level of a line that journald broke off, for what follows
    for position, entry in enumerate(entries):
        log = parse_log_line(entry.message)
        level = log.level or broken.get(entry.pid, "")
        broken.pop(entry.pid, None)
        if len(entry.message.encode("utf-8", "replace")) >= _LINE_MAX:
            broken[entry.pid] = level
        text = _KERNEL_STAMP.sub("", log.text, count=1) if log.text.startswith("[") else log.text
        pid = str(log.pid or entry.pid or "")
        identifier = entry.identifier or log.identifier
        yield Line(
            index=position if entry.line is None else entry.line,
            text=text,
            process=log.process or (identifier if entry.transport != "stdout" else ""),
            identifier=identifier,
            key=f"{log.identifier} {pid or log.process}" if log.identifier else pid or log.process or identifier,
            level=level,
            voice=_voice(entry, identifier, text, has_head=bool(log.level or log.process)),
            invocation_id=entry.invocation_id,
            unit=entry.unit if entry.unit != "init.scope" else "",
            logged_at=entry.realtime_at.isoformat() if entry.realtime_at else log.logged_at,
            is_missing=entry.is_missing,
        )


def _voice(entry: JournalEntry, identifier: str, text: str, *, has_head: bool) -> str:
    if entry.transport == "kernel" or identifier == "kernel":
        return "kernel"
    if identifier in {"systemd", "systemd-oomd"} or (identifier.startswith("(") and entry.transport != "stdout"):
        return "systemd"
    if identifier in _OTHERS:
        return "other"
    # Pasted text: nothing but the words tells who speaks; behind an engine's head "Starting to load model" is its own.
    if entry.transport != "stdout" and not has_head:
        if _KERNEL_TEXT.match(text):
            return "kernel"
        if _SYSTEMD_TEXT.match(text):
            return "systemd"
    return "program"


def split_runs(lines: Iterable[Line]) -> list[Run]:
    """One run per invocation id; text without ids is split where a start is announced."""
    runs: dict[str, Run] = {}
    current = Run("", [])
    anonymous = 0
    for line in lines:
        if line.invocation_id:
            name = line.invocation_id
        elif line.voice in {"kernel", "other"} and current.lines:
            current.lines.append(line)
            continue
        else:
            anonymous += _begins_run(line, runs.get(f"#{anonymous}"))
            name = f"#{anonymous}"
        current = runs.setdefault(name, Run(line.invocation_id, []))
        current.unit = current.unit or line.unit
        current.lines.append(line)
    found = [run for run in runs.values() if run.lines]
    _note_neighbours(found)
    for run in found:
        _note_phases(run)
    return found


def _begins_run(line: Line, run: Run | None) -> bool:
    """Whether a line without an invocation id announces another start than the one of `run`."""
    if run is None:
        return False
    if line.voice == "systemd":
        is_over = any(other.voice == "systemd" and not _STARTED.match(other.text) for other in run.lines[-12:])
        return bool(_STARTED.match(line.text)) and is_over
    return bool(_NEW_RUN.search(line.text)) and any(_NEW_RUN.search(other.text) for other in run.lines)


def _note_phases(run: Run) -> None:
    """Each line's phase: the furthest that was shown before it in this run."""
    order, name = -1, _UNSEEN
    for line in run.lines:
        if (
            line.voice == "program"
            and (phase := phase_of(line.text))
            and phase.order > order
            and phase.id != "stopping"
        ):
            order, name = phase.order, phase.id
        line.phase = name


def _note_neighbours(runs: list[Run]) -> None:
    """Marks runs between whose lines another unit has lines."""
    ordered = sorted(runs, key=lambda run: run.lines[0].index)
    for earlier, later in pairwise(ordered):
        overlaps = later.lines[0].index < earlier.lines[-1].index
        if overlaps and earlier.unit != later.unit:
            earlier.has_neighbour = later.has_neighbour = True
    for run in runs:
        speakers = Counter(line.identifier for line in run.lines if line.voice == "program" and line.identifier)
        run.has_neighbour |= not run.invocation_id and len([n for n in speakers.values() if n > _NEIGHBOUR_LINES]) > 1
