"""Hold the lock of a unit on its host, for as long as a block lasts; a lost link is told, never passed over."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from opslib.domain.host import Host, LineStream
from opslib.domain.lock import LockHolder, lock_arguments, lock_held, locks_dir, read_holder
from opslib.errors import (
    CommandTimedOut,
    HostUnreachable,
    LockLost,
    OpslibError,
    PrivilegeRefused,
    UnexpectedAnswer,
)

_ANSWER_S = 30.0
_RETRY_S = 0.5
_DENIED = (1, 2, 13)  # EPERM; ENOENT, where the directory above may not be written; EACCES


class HeldLock:
    """A lock that this process holds on a host through a program there; a thread keeps it, and takes it again."""

    def __init__(self, host: Host, unit: str, holder: LockHolder, on_change: Callable[[str], None]) -> None:
        self.unit = unit
        self.holder = holder
        self.left_over: LockHolder | None = None  # who had it before and never freed it
        self.n_lost = 0
        self._host = host
        self._on_change = on_change
        self._state: Literal["taking", "held", "lost", "gone"] = "taking"
        self._problem: OpslibError | None = None  # why it is gone
        self._changed = threading.Condition()
        self._freed = threading.Event()
        self._stream: LineStream | None = None
        self._thread = threading.Thread(target=self._keep, name="opslib-lock", daemon=True)

    @property
    def is_held(self) -> bool:
        """Whether the lock is held now, as far as is known here."""
        return self._state == "held"

    def require(self, *, patience_s: float = 20.0) -> None:
        """Come back where the lock is held, having waited for a lost link to come back; else raises LockLost."""
        with self._changed:
            self._changed.wait_for(lambda: self._state in ("held", "gone"), timeout=patience_s)
            if self._state != "held":
                why = self._problem.message if self._problem else "the link to the host is lost"
                raise LockLost(
                    f"the lock of {self.unit} was lost: {why}",
                    host=self._host.settings.alias,
                    hint="see what is going on there before you go on",
                )

    def take(self) -> None:
        """Take the lock; raises LockHeld, or what keeps the host from being asked."""
        if self._host.settings.sudo == "listed":
            _make_locks_dir(self._host)
        self._thread.start()
        with self._changed:
            is_told = self._changed.wait_for(lambda: self._state in ("held", "gone"), timeout=_ANSWER_S)
        if not is_told:
            self.free()
            raise CommandTimedOut(f"no answer for {_ANSWER_S:g} s when the lock was asked for")
        if self._problem is not None:
            raise self._problem

    def free(self) -> None:
        """Free it in order; safe to call twice. Where the link is lost the host frees it by itself."""
        was_held, stream = self.is_held, self._stream
        self._freed.set()
        if was_held:
            with suppress(OpslibError, OSError):  # at an end nobody could do anything about it
                arguments = {**self._arguments(), "is_free": True}
                self._host.run_program("lock", arguments, sudo=_with_sudo(self._host), timeout_s=_ANSWER_S)
        if stream is not None:
            stream.close()
        self._problem = self._problem or LockLost("it was freed")
        self._set("gone")
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_ANSWER_S)

    def _arguments(self) -> dict[str, object]:
        return lock_arguments(self._host.settings, self.unit, self.holder)

    def _keep(self) -> None:
        """Hold the lock, and take it again after each loss, until it is freed or somebody else has it."""
        while not self._freed.is_set() and self._state != "gone":
            try:
                with self._host.stream_program("lock", self._arguments(), sudo=_with_sudo(self._host)) as stream:
                    self._stream = stream
                    for line in stream:
                        self._hear(_parsed(line))
                self._lost("the program that held it has ended")
            except HostUnreachable as error:
                self._lost(error.message, error)
            except OpslibError as error:
                self._end(error)
            self._freed.wait(_RETRY_S if self._state == "lost" else 0)

    def _hear(self, told: dict[str, Any]) -> None:
        alias, state = self._host.settings.alias, told.get("state")
        if state == "held":
            self._hold(read_holder(told.get("left_over")))
        elif state == "busy":
            self._end(lock_held(self.unit, read_holder(told.get("holder")), host=alias, host_pid=told.get("pid")))
        elif state == "problem":
            self._end(_refused(self._host, told))

    def _hold(self, left_over: LockHolder | None) -> None:
        is_again = self._state == "lost"
        if not is_again:
            self.left_over = left_over
        self._set("held")
        if is_again:
            between = "nobody had it meanwhile" if left_over == self.holder else "somebody may have had it meanwhile"
            self._on_change(f"the lock of {self.unit} is held again; {between}")

    def _lost(self, why: str, error: OpslibError | None = None) -> None:
        if self._freed.is_set() or self._state == "gone":
            return
        if self._state == "taking":
            self._end(error or UnexpectedAnswer(f"the lock could not be taken: {why}"))
            return
        if self._state == "held":
            self.n_lost += 1
            self._set("lost")
            self._on_change(f"the lock of {self.unit} is lost: {why}; trying to take it again")

    def _end(self, error: OpslibError) -> None:
        was = self._state
        self._problem = error
        self._set("gone")
        if was == "lost":
            self._on_change(f"the lock of {self.unit} could not be taken again: {error.message}")

    def _set(self, state: Literal["held", "lost", "gone"]) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()


@contextmanager
def hold_lock(
    host: Host, unit: str, holder: LockHolder, *, on_change: Callable[[str], None] = lambda _text: None
) -> Iterator[HeldLock]:
    """The lock of `unit` on `host`, while the block lasts; it ends with this process or the link, however they end.

    Raises LockHeld, naming who has it; PrivilegeRefused where the login may not lock there; HostUnreachable.
    `on_change` is told, by a thread, of a lock that was lost and of one that was taken again.
    """
    lock = HeldLock(host, unit, holder, on_change)
    lock.take()
    try:
        yield lock
    finally:
        lock.free()


def _with_sudo(host: Host) -> bool:
    """Whether the program runs as root: not where sudo is a list, which names no program."""
    return host.settings.sudo is True


def _make_locks_dir(host: Host) -> None:
    """As root, by the one command that the sudoers list has for it; that it is there already is no error."""
    argv = ("mkdir", "--parents", "--mode=1777", locks_dir(host.settings))
    with suppress(PrivilegeRefused):  # then the program says what is missing
        host.run(argv, sudo=True)


def _refused(host: Host, told: dict[str, Any]) -> OpslibError:
    said = f"the lock can't be taken: {told.get('path')}: {told.get('problem')}"
    hint = ""
    if told.get("errno") in _DENIED:
        hint = f"as root, once: mkdir --parents --mode=1777 {locks_dir(host.settings)}"
    return PrivilegeRefused(said, host=host.settings.alias, hint=hint or "see the disk that it lies on")


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        told = json.loads(line)
        if isinstance(told, dict):
            return told
    return {}
