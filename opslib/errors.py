"""Why a question could not be answered, or an act was refused.

A judgement (a crashed unit, a corrupt shard) is a value, never an exception. Exceptions mean only
*could not find out* (exit code 3) or *refused* (exit code 4).
"""


class OpslibError(Exception):
    """What was asked, of which host, what came back and what to do next, in one readable line."""

    exit_code = 3

    def __init__(self, message: str, *, host: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.host}: " if self.host else ""
        if not self.hint:
            return f"{where}{self.message}"
        stop = "" if self.message.endswith((".", "!", "?", ":", ";", "…")) else "."
        return f"{where}{self.message}{stop} Next: {self.hint}"

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback: the one line that helps."""
        return [f"opslib: {self}"]


class CouldNotFindOut(OpslibError):  # noqa: N818 - a statement about knowledge, not a fault
    """The question stays open: its answer is *unknown*, never *failed*."""


class HostUnreachable(CouldNotFindOut):
    """No connection: refused, timed out, name unknown, or lost and not regained."""


class CommandTimedOut(CouldNotFindOut):
    """The remote command did not end in time; its whole process group was ended on the host."""


class UnexpectedAnswer(CouldNotFindOut):
    """The host answered something that could not be read."""


class Refused(OpslibError):  # noqa: N818
    """Nothing was done: a precondition does not hold."""

    exit_code = 4


class BadParameter(Refused):
    """A parameter is unknown, ill-typed or out of bounds; no host was contacted."""


class UnknownName(Refused):
    """A host alias, runbook, scenario or record that does not exist; the nearest name is offered."""


class HostKeyRefused(Refused):
    """The host's key is unknown or differs from the pinned one."""


class PrivilegeRefused(Refused):
    """`sudo -n` was refused, or a file may not be read or written by the login."""


class NoPythonOnHost(Refused):
    """The host has no usable Python 3.8+."""


class LockHeld(Refused):
    """Somebody else is at work on the same unit; they are named."""


class LockLost(Refused):
    """The lock that a run had is gone: somebody else may be at work on the unit by now."""


class DryRunEnds(OpslibError):  # noqa: N818
    """A dry run has come to its first change: no fault, and nothing was done."""


class ConsentMissing(Refused):
    """A change was planned but nobody consented to it."""


def reason_of(error: BaseException) -> str:
    """What went wrong, in words without Python's own: no error number, no name of a codec.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "x")), reason_of(TimeoutError())
    ('No such file or directory', 'TimeoutError')
    """
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    inner = getattr(error, "reason", None)  # urllib wraps what went wrong
    if isinstance(inner, BaseException):
        return reason_of(inner)
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__
