"""What the threads of a running rollout share: its state, its hosts, who asked it to stop, and how many units serve."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from opslib.app.binding import open_bound_host
from opslib.app.rollout_record import record_of_rollout
from opslib.app.signals import signals_to
from opslib.domain.host import Host
from opslib.domain.rollout import HostStep, RolloutEvent, RolloutPlan
from opslib.domain.rollout_judge import why_no_more
from opslib.domain.rollout_state import RolloutState, after, fold
from opslib.errors import OpslibError, Refused
from opslib.hosts.careful import CarefulHost
from opslib.records.rollout import RolloutFolder
from opslib.workflow.unit_found import is_serving

OnChange = Callable[[RolloutEvent, RolloutState], None]
LISTEN_EVERY_S = 0.3
_ASK_EVERY_S = 2.0
PATIENCE_S = 60.0  # for a unit that has to serve, or a host that has to answer, before something is given up
_MOST_ASKED_AT_ONCE = 16


class Rollout:
    """A rollout that this process carries out."""

    def __init__(self, folder: RolloutFolder, on_change: OnChange) -> None:
        self.folder = folder
        self.plan: RolloutPlan = folder.plan()
        self.state = fold(self.plan, folder.events())
        self.is_hard = False  # the runs that are under way are ended, too
        self._on_change = on_change
        self._lock = threading.RLock()
        self._hosts: dict[str, Host] = {}
        self._down: set[str] = set()  # what is being replaced now, whether it still answers or not
        self._admitting = threading.Lock()
        self._signals: list[int] = []

    def note(self, kind: Any, host: str = "", step: HostStep | None = None, text: str = "", **facts: Any) -> None:
        """Add what has happened to the state on the disk, then let everybody know; raises CouldNotFindOut."""
        with self._lock:
            event = RolloutEvent(at=datetime.now(UTC), kind=kind, host=host, step=step, text=text, **facts)
            self.folder.append(event)
            self.state = after(self.state, event)
            self.folder.write_record(record_of_rollout(self.state))
            self._on_change(event, self.state)

    def show(self, host: str, section: str) -> None:
        """Let everybody know which section a host's run is in; its own record keeps that."""
        with self._lock:
            event = RolloutEvent(at=datetime.now(UTC), kind="host", host=host, text=section)
            self.state = after(self.state, event)
            self._on_change(event, self.state)

    # -- hosts -----------------------------------------------------------------------------------------------------

    def open(self, alias: str) -> Host:
        """The host, connected on first use and kept."""
        with self._lock:
            if alias not in self._hosts:
                opened = open_bound_host(alias)
                self._hosts[alias] = CarefulHost(opened, retries=2, is_dry_run=False, on_retry=lambda _text: None)
            return self._hosts[alias]

    def close(self, *aliases: str) -> None:
        """Give up the connections to these hosts; to all of them where none is named."""
        with self._lock:
            for alias in aliases or tuple(self._hosts):
                if (host := self._hosts.pop(alias, None)) is not None:
                    with suppress(OpslibError, OSError):
                        host.close()

    # -- what may be done ------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take in signals and the control file; by the main thread, now and then."""
        for number in self._signals[:]:
            self._signals.remove(number)
            name = signal.Signals(number).name
            is_second = self.state.phase == "stopping"
            if number != signal.SIGINT or is_second:
                self.is_hard = True
            self.note("asked", text=f"stop by {name}")
            if self.is_hard:
                self.close(*(progress.host for progress in self.state.at(HostStep.DRAINING)))
        for wish in self.folder.wishes():
            self.note("asked", text=f"{wish.ask} by {wish.by}")

    def wait_while_paused(self) -> None:
        """Listen, and come back when the rollout is not paused; by the main thread."""
        self.listen()
        while self.state.phase == "paused":
            time.sleep(LISTEN_EVERY_S)
            self.listen()

    def may_begin(self) -> bool:
        """Whether another host may be begun now; waits while the rollout is paused, for what the main thread hears."""
        while self.state.phase == "paused":
            time.sleep(LISTEN_EVERY_S)
        return not why_no_more(self.state)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGINT once: nothing more is begun; again, and SIGTERM and SIGHUP: the runs under way are ended in order."""
        with signals_to(self._signals.append):
            yield

    # -- who serves ------------------------------------------------------------------------------------------------

    def serving(self, aliases: Sequence[str]) -> dict[str, bool | None]:
        """Whether the unit serves on each of these hosts; None where that can't be found out."""
        if not aliases:
            return {}
        with ThreadPoolExecutor(min(_MOST_ASKED_AT_ONCE, len(aliases)), thread_name_prefix="health") as pool:
            return dict(zip(aliases, pool.map(self._serves, aliases), strict=True))

    def _serves(self, alias: str) -> bool | None:
        try:
            return is_serving(self.open(alias), self.plan.unit)
        except OpslibError:
            return None

    def admit(self, alias: str, *, is_serving: bool, on_wait: Callable[[str], None]) -> None:
        """Come back when this host's unit may be taken down: `min_serving` others serve, or it doesn't serve itself.

        Raises Refused where too few others serve, and none that is being replaced could change that.
        """
        end_at, told = time.monotonic() + PATIENCE_S, ""
        while True:
            with self._admitting:
                words = self._too_few(alias) if is_serving and self.plan.min_serving else ""
                if not words:
                    self._down.add(alias)
                    return
                if self._down:
                    end_at = time.monotonic() + PATIENCE_S
            if words != told:
                on_wait(words)
                told = words
            if time.monotonic() > end_at or self.state.phase == "stopping":
                raise Refused(f"{words}: nothing was taken down", host=alias)
            time.sleep(_ASK_EVERY_S)

    def release(self, alias: str) -> None:
        """The host's unit is no longer being replaced."""
        with self._admitting:
            self._down.discard(alias)

    def _too_few(self, alias: str) -> str:
        """Why the unit has to go on serving; "" where it may be taken down."""
        others = [other for other in self.plan.hosts if other != alias and other not in self._down]
        n_serving = sum(1 for serves in self.serving(others).values() if serves)
        if n_serving >= self.plan.min_serving:
            return ""
        n_hosts = len(self.plan.hosts)
        return f"of {n_hosts} units {n_serving} others serve, and --min-serving {self.plan.min_serving} must"
