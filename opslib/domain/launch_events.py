"""What is seen of a launch, and how a watch's events are written down and read back."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import Value


class HostHello(Value):
    """The watching program has begun: which boot of the host, and its two clocks."""

    at: datetime
    boot_id: str = ""
    monotonic_s: float | None = None
    pid: int = 0  # of the program, on the host


class JournalSeen(Value):
    """A journal entry of the unit came in."""

    at: datetime
    entry: JournalEntry


class HealthSeen(Value):
    """`/health` was asked; None where nothing listens or answers."""

    at: datetime
    status_code: int | None
    latency_ms: float | None = None
    port: int | None = None


class AnswerSeen(Value):
    """The engine was asked for one real answer: what kind it gave, or what was the matter.

    A kind of "none" says that no engine was recognised. `is_ours`: whether the unit's own processes listen on the
    port, None where that can't be told.
    """

    at: datetime
    pid: int
    kind: str = ""
    model: str = ""
    latency_ms: float | None = None
    is_ours: bool | None = None
    problem: str = ""
    path: str = ""


class UnitSeen(Value):
    """systemd was asked about the unit."""

    at: datetime
    status: UnitStatus


class ExitSeen(Value):
    """The main process has ended; why is not known yet."""

    at: datetime
    pid: int


class GpuSeen(Value):
    """GPU memory was asked."""

    at: datetime
    gpus: tuple[Gpu, ...]
    utilization: tuple[int, ...] = ()  # percent, in the order of `gpus`


class TickSeen(Value):
    """The link works; what the unit's processes have used so far, where that may be known."""

    at: datetime
    monotonic_s: float | None = None
    cpu_s: float | None = None
    read_bytes: int | None = None
    health_ms: float | None = None


class ProblemSeen(Value):
    """Something of the watch itself did not work as it should."""

    at: datetime
    text: str


class JournalGap(Value):
    """Entries of the unit are missing from what was read: rotated away, or never stored."""

    at: datetime
    text: str


class LinkLost(Value):
    """The host can't be heard any more; nothing follows from that about the unit."""

    at: datetime
    reason: str = ""


class DeadlineReached(Value):
    """The watch was given so much time and no more."""

    at: datetime


class Aborted(Value):
    """The operator ended the watch; the unit goes on."""

    at: datetime
    reason: str = ""


LaunchEvent = (
    HostHello
    | JournalSeen
    | HealthSeen
    | AnswerSeen
    | UnitSeen
    | ExitSeen
    | GpuSeen
    | TickSeen
    | ProblemSeen
    | JournalGap
    | LinkLost
    | DeadlineReached
    | Aborted
)
_KINDS: dict[str, type[Value]] = {
    "hello": HostHello,
    "journal": JournalSeen,
    "health": HealthSeen,
    "answer": AnswerSeen,
    "unit": UnitSeen,
    "exit": ExitSeen,
    "gpu": GpuSeen,
    "tick": TickSeen,
    "problem": ProblemSeen,
    "gap": JournalGap,
    "link_lost": LinkLost,
    "deadline": DeadlineReached,
    "aborted": Aborted,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_document(event: LaunchEvent) -> dict[str, Any]:
    """The event as one JSON object; what is at its default is left out."""
    return {"event": _NAMES[type(event)], **event.model_dump(mode="json", exclude_defaults=True)}


def parse_event(document: Mapping[str, Any]) -> LaunchEvent | None:
    """The event that `event_document` wrote, None for anything else (a newer kit may write more)."""
    kind = _KINDS.get(str(document.get("event")))
    if kind is None:
        return None
    try:
        return kind.model_validate({name: value for name, value in document.items() if name in kind.model_fields})  # type: ignore[return-value]
    except ValueError:
        return None
