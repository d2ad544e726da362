"""A launch as it is told: what was seen when, the phases of every start, both signals, and the journal's tail."""

from collections import deque
from itertools import islice

from opslib.domain.engine_figures import EngineFigures, may_tell_figures, read_figures
from opslib.domain.engine_log import parse_log_line, strip_colours
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.launch_events import JournalSeen
from opslib.domain.launch_phases import PhaseSpan
from opslib.domain.launch_record import LaunchUpdate
from opslib.domain.launch_status import LaunchChange, LaunchStatus
from opslib.domain.states import Value

LEVELS = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}  # as syslog counts them
_KEPT_LINES = 5000  # of the journal, for level and search
_KEPT_MESSAGES = 2000  # of a figure the first counts
_ROUTE = "] Route: /"  # dozens of lines, a path each, would push out what the engine said before
_AS_IT_IS = frozenset({"state", "guard", "exit", "note"})


class Mark(Value):
    """From `at_s` seconds since the launch began on, it reads so."""

    at_s: float
    text: str


class JournalLine(Value):
    """A line of the journal's tail; `level` as syslog counts (7 debug … 2 critical)."""

    at_s: float
    level: int
    text: str


class LaunchStory:
    """Takes a watch's updates in, live or played again, and keeps what a reader sees: the same for the same events."""

    def __init__(self) -> None:
        self.status: LaunchStatus | None = None
        self.timeline: list[Mark] = []
        self.units: list[Mark] = []
        self.health: list[Mark] = [Mark(at_s=0.0, text="closed")]
        self.past_phases: tuple[PhaseSpan, ...] = ()  # of the starts before the present one
        self._journal: deque[JournalLine] = deque(maxlen=_KEPT_LINES)
        self._messages: list[str] = []  # of this invocation, whole: those that may hold figures
        self._phase_id = ""

    def take(self, update: LaunchUpdate) -> tuple[str, ...]:
        """Take one update in; returns what it adds to the timeline."""
        before, self.status = self.status, update.status
        if before:
            self._keep_past(before.phases, update.status.phases)
        if isinstance(update.event, JournalSeen):
            self._take_entry(update.event.entry, update.status)
        added = [text for change in update.changes if (text := self._told(change, update.status))]
        self.timeline += [Mark(at_s=update.status.elapsed_s, text=text) for text in added]
        return tuple(added)

    def journal(self, n: int, *, level: str = "DEBUG", search: str = "") -> list[str]:
        """The last `n` lines of that level and worse that hold the searched words, in any case."""
        words = search.casefold()
        worst = LEVELS[level]
        found = (line.text for line in reversed(self._journal) if line.level <= worst and words in line.text.casefold())
        return list(islice(found, n))[::-1]

    @property
    def figures(self) -> EngineFigures:
        """What the engine printed of itself during this start."""
        return read_figures(self._messages)

    @property
    def phases(self) -> tuple[PhaseSpan, ...]:
        """The phases of all starts in their order."""
        return (*self.past_phases, *(self.status.phases if self.status else ()))

    def _keep_past(self, old: tuple[PhaseSpan, ...], new: tuple[PhaseSpan, ...]) -> None:
        """A new start has other phases: those of the one before are kept."""
        if old and (not new or new[0].began_at != old[0].began_at):
            self.past_phases += old

    def _take_entry(self, entry: JournalEntry, status: LaunchStatus) -> None:
        text = strip_colours(_last_state(entry.message))
        if text.strip() and _ROUTE not in text:
            self._journal.append(JournalLine(at_s=status.elapsed_s, level=level_of(entry), text=text))
        is_ours = entry.invocation_id == status.invocation_id
        if is_ours and len(self._messages) < _KEPT_MESSAGES and may_tell_figures(entry.message):
            self._messages.append(entry.message)

    def _told(self, change: LaunchChange, status: LaunchStatus) -> str:
        at_s = status.elapsed_s
        if change.what == "phase":
            is_new = status.phase is not None and status.phase.id != self._phase_id
            self._phase_id = status.phase.id if status.phase else ""
            return status.phase.title if is_new and status.phase else ""
        if change.what == "unit":
            self.units.append(Mark(at_s=at_s, text=change.text))
        elif change.what == "health":
            self.health.append(Mark(at_s=at_s, text=change.text))
        elif change.what in {"invocation", "crash"}:
            return ""
        return change.text if change.what in _AS_IT_IS or not change.text else f"{change.what}: {change.text}"


def level_of(entry: JournalEntry) -> int:
    """How grave a line is: as its engine says, else as the journal does (syslog(3): 7 debug … 0 emergency)."""
    known = LEVELS.get(parse_log_line(entry.message).level)
    return known if known is not None else 6 if entry.priority is None else entry.priority


def _last_state(message: str) -> str:
    """What a terminal would show of a message: of a progress bar, its last state."""
    prefix, _, rest = message.rstrip().partition("\r")
    return prefix + rest.rpartition("\r")[2] if rest else prefix
