"""Argument vectors as they are really started: bounded in time, privileged when asked, and their refusals."""

import secrets
import shlex
from collections.abc import Sequence

from opslib.domain.host import CommandResult, HostSettings
from opslib.errors import BadParameter, CommandTimedOut, NoPythonOnHost, PrivilegeRefused

MAX_VECTOR_BYTES = 120_000  # Linux takes at most 128 KiB in one argument, and sshd hands over one to the shell

# `timeout` ends its process group; what has left the group (setsid, daemons) still carries the environment
# variable and is ended by it. The variable is set inside sudo, which would drop it.
BOUNDED = """\
mark=OPSLIB_COMMAND=$1 bound=$2; shift 2
env LC_ALL=C "$mark" timeout --kill-after=2 "$bound" "$@"
status=$?
case $status in 124|137)
  for attempt in 1 2 3 4 5; do
    marked=$(grep -lsF "$mark" /proc/[0-9]*/environ)
    [ -n "$marked" ] || break
    for file in $marked; do pid=${file#/proc/}; kill -9 "${pid%/environ}"; done
  done 2>/dev/null;;
esac
exit $status
"""

OWN_WORDS = "opslib: "  # how a program of ours begins what it says on standard error

_REFUSALS = (
    "a password is required",
    "a terminal is required",
    "is not allowed to",
    "not in the sudoers file",
    "may not run sudo",
    "no new privileges",
    "you must have a tty",
)


def bounded_vector(argv: Sequence[str], timeout_s: float) -> list[str]:
    """`argv` under `timeout`, wrapped so that no process of its tree outlives the time.

    Raises BadParameter for an empty vector, one with a NUL in it, or one that no kernel would take.
    """
    return ["sh", "-c", BOUNDED, "opslib", secrets.token_hex(8), f"{max(timeout_s, 0.01):.3f}", *checked_vector(argv)]


def checked_vector(argv: Sequence[str]) -> list[str]:
    """`argv` as a list, when a kernel can run it; raises BadParameter otherwise."""
    vector = [argv] if isinstance(argv, str) else list(argv)
    if isinstance(argv, str) or not vector or not vector[0]:
        raise BadParameter(f"an argument vector is a list that begins with a program, not {argv!r}")
    if any("\0" in argument for argument in vector):
        raise BadParameter("an argument cannot hold a NUL byte", hint="send it on standard input")
    if len(shlex.join(vector).encode("utf-8", "surrogateescape")) > MAX_VECTOR_BYTES:
        raise BadParameter(f"arguments of more than {MAX_VECTOR_BYTES} bytes", hint="send them on standard input")
    return vector


def english_vector(argv: Sequence[str]) -> list[str]:
    """`argv` in the C locale: programs read what it says."""
    return ["env", "LC_ALL=C", *argv]


def sudo_vector(argv: Sequence[str]) -> list[str]:
    """`argv` as root, or a refusal in English: sudo never asks (`-n`)."""
    return english_vector(["sudo", "-n", "--", *argv])


def raise_for_sudo(settings: HostSettings, exit_status: int, error_text: str) -> None:
    """Raises PrivilegeRefused when sudo said no, or is not there, in answer to a vector of `sudo_vector`."""
    said = [line for line in error_text.splitlines() if any(refusal in line for refusal in _REFUSALS)]
    is_refused = exit_status == 1 and said
    is_missing = exit_status == 127 and error_text.startswith("env: ")
    if is_refused or is_missing:
        raise PrivilegeRefused(
            f"sudo refused: {said[0] if said else error_text}",
            host=settings.alias,
            hint="allow it without a password (NOPASSWD in sudoers), or log in as root",
        )


def raise_for_python(settings: HostSettings, exit_status: int, error_text: str) -> None:
    """Raises NoPythonOnHost when a program's vector found no Python 3.8 or newer."""
    is_python_2 = error_text.startswith("Unknown option: -I")
    if is_python_2 or (exit_status == 127 and not error_text.startswith(OWN_WORDS)):
        raise NoPythonOnHost(
            f"no usable Python ({settings.python}): {error_text.partition(chr(10))[0] or 'not found'}",
            host=settings.alias,
            hint="install Python 3.8 or newer there, or name it by `python` in the inventory",
        )


def raise_for_timeout(settings: HostSettings, result: CommandResult, timeout_s: float) -> None:
    """Raises CommandTimedOut when the exit status is `timeout`'s own and the time was really up."""
    if result.exit_status in (124, 137) and result.duration_s >= timeout_s * 0.98:
        raise CommandTimedOut(
            f"`{' '.join(result.argv[:3])}` did not end within {timeout_s:g} s; its processes were ended",
            host=settings.alias,
            hint="see what keeps the host busy, or allow more time",
        )
