"""The program `watch` on a host: what it is told, and what its lines say."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from opslib.domain.facts.gpu import gpu_watch_command, parse_gpu_watch
from opslib.domain.facts.journal import entry_of, journal_command
from opslib.domain.facts.systemd import parse_unit_show, show_unit_command, unit_name
from opslib.domain.host import LineStream
from opslib.domain.launch_events import GpuSeen, JournalSeen, LaunchEvent, LinkLost, UnitSeen, parse_event
from opslib.errors import CouldNotFindOut, HostUnreachable, OpslibError

_SILENCE_S = 8.0  # four ticks: then the link counts as lost
_SHOW_S = 5.0  # systemd is asked so often where nothing happens; what happens is seen in the journal or the process
_SHOW_ALONE_S = 1.0  # without a journal
_QUEUED_LINES = 2000


def watch_arguments(
    unit: str,
    *,
    port: int,
    health_path: str,
    after_cursor: str,
    has_gpus: bool,
    since: datetime | None = None,
    has_journal: bool = True,
    wants_answer: bool = True,
) -> dict[str, object]:
    """What the program `watch` on the host is told: argument vectors of the facts, port, path, pace."""
    journal = journal_command(unit, after_cursor=after_cursor or None, follow=True, since=since)
    return {
        "unit": unit_name(unit),
        "journal": list(journal) if has_journal else None,
        "show": list(show_unit_command(unit)),
        "gpu": list(gpu_watch_command()) if has_gpus else None,
        "port": port,
        "health_path": health_path,
        "wants_answer": wants_answer,
        "interval_s": _SHOW_S if has_journal else _SHOW_ALONE_S,
    }


def read_events(stream: LineStream, *, clock: Callable[[], datetime], deadline: datetime) -> Iterator[LaunchEvent]:
    """The events that a running program `watch` tells, until LinkLost, or silently until the deadline.

    Raises what the stream raises, but that the host is unreachable.
    """
    # bounded: a burst waits in the host's pipe, not here
    lines: queue.Queue[bytes | OpslibError | None] = queue.Queue(maxsize=_QUEUED_LINES)
    reader = threading.Thread(target=_pump, args=(stream, lines), name="opslib-watch", daemon=True)
    reader.start()
    try:
        yield from _take_lines(lines, clock=clock, deadline=deadline)
    finally:
        stream.close()
        while reader.is_alive():  # it may wait for room
            with suppress(queue.Empty):
                lines.get(timeout=0.05)


def _take_lines(
    lines: "queue.Queue[bytes | OpslibError | None]", *, clock: Callable[[], datetime], deadline: datetime
) -> Iterator[LaunchEvent]:
    while (left_s := (deadline - clock()).total_seconds()) > 0:
        try:
            line = lines.get(timeout=min(left_s, _SILENCE_S))
        except queue.Empty:
            if left_s > _SILENCE_S:
                yield LinkLost(at=clock(), reason=f"nothing heard for {_SILENCE_S:.0f} s")
                return
            continue
        if line is None:
            yield LinkLost(at=clock(), reason="the program on the host ended")
            return
        if isinstance(line, HostUnreachable):
            yield LinkLost(at=clock(), reason=line.message)
            return
        if isinstance(line, OpslibError):
            raise line
        if event := parse_watch_line(line):
            yield event


def _pump(stream: LineStream, lines: "queue.Queue[bytes | OpslibError | None]") -> None:
    """Reads in a thread of its own, so that silence is noticed."""
    try:
        for line in stream:
            lines.put(line)
    except OpslibError as error:
        lines.put(error)
    except (OSError, ValueError):  # closed under the reader
        pass
    lines.put(None)


def parse_watch_line(line: bytes) -> LaunchEvent | None:
    """The event that a line of the program `watch` tells; None where it tells nothing that can be read."""
    with suppress(ValueError, RecursionError, KeyError, TypeError, CouldNotFindOut):
        fields = json.loads(line)
        at = datetime.fromtimestamp(fields["at"], tz=UTC)
        match fields["type"]:
            case "journal":
                return JournalSeen(at=at, entry=entry_of(fields["entry"]))
            case "unit" if fields["text"]:
                return UnitSeen(at=at, status=parse_unit_show(fields["text"]))
            case "gpu" if fields["text"]:
                gpus, utilization = parse_gpu_watch(fields["text"])
                return GpuSeen(at=at, gpus=gpus, utilization=utilization)
            case "unit" | "gpu":
                return None
            case kind:
                return parse_event({**fields, "event": kind, "at": at})
    return None
