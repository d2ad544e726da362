"""Keep an eye on a service while something else is done with it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from opslib.domain.host import Host
from opslib.domain.launch_events import LaunchEvent, UnitSeen
from opslib.domain.steadiness import has_ended, is_healthy
from opslib.errors import OpslibError
from opslib.workflow.launch import pause, show_unit, utc_now
from opslib.workflow.watch_stream import parse_watch_line, watch_arguments

_END_S = 5.0


class Watched:
    """What was seen of a service so far; filled by a thread while its `with` block lasts."""

    def __init__(self, host: Host, unit: str) -> None:
        self._host = host
        self._unit = unit
        self.events: list[LaunchEvent] = []

    def look(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        """Ask systemd once more; says nothing where the host can't be asked."""
        with suppress(OpslibError):
            status = show_unit(self._host, self._unit)
            self.events.append(UnitSeen(at=clock(), status=status))

    def settle(self, *, limit_s: float = 20.0, pace_s: float = 1.0) -> None:
        """Look on until the unit has ended or `/health` answers 200: a server outlives its dead engine for a while."""
        for _ in range(max(1, round(limit_s / pace_s))):
            pause(pace_s)
            self.look()
            if has_ended(self.events) or is_healthy(self.events):
                return


@contextmanager
def watched_service(host: Host, unit: str, *, port: int, health_path: str = "/health") -> Iterator[Watched]:
    """Systemd's answers and `/health`'s, as the program `watch` on the host tells them, while the block lasts."""
    watched = Watched(host, unit)
    arguments = watch_arguments(
        unit, port=port, health_path=health_path, after_cursor="", has_gpus=False, has_journal=False, wants_answer=False
    )
    # No journal is read, so no right is needed.
    with host.stream_program("watch", arguments, sudo=False) as stream:

        def read() -> None:
            with suppress(OpslibError, OSError, ValueError):  # closed, or the link is lost: what was seen remains
                for line in stream:
                    if event := parse_watch_line(line):
                        watched.events.append(event)

        thread = threading.Thread(target=read, name="opslib-watched", daemon=True)
        thread.start()
        try:
            yield watched
        finally:
            stream.close()
            thread.join(_END_S)
