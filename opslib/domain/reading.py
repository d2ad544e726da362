"""Which commands only ask: what a dry run may send, and what may be asked again when a host was lost meanwhile."""

from collections.abc import Sequence
from itertools import dropwhile

# on-host programs that change nothing (`verify` without receipts)
READING_PROGRAMS = frozenset(
    {
        "digest_trial",
        "drift",
        "engine_package",
        "identity",
        "preflight",
        "survey",
        "unit_verify",
        "verify",
        "watch",
    }
)

# program -> the words of which one must be its first that is no option; None: it can only ask
_READING: dict[str, frozenset[str] | None] = {
    "cat": None,
    "df": None,
    "getent": None,
    "id": None,
    "loginctl": frozenset({"show-user", "show-session"}),
    "ls": None,
    "ps": None,
    "readlink": None,
    "ss": None,
    "stat": None,
    "systemctl": frozenset({"cat", "is-active", "is-enabled", "is-failed", "list-units", "list-unit-files", "show"}),
    "test": None,
    "uname": None,
}
_CHANGING_OPTIONS = {
    "journalctl": ("--rotate", "--vacuum", "--flush", "--sync", "--relinquish-var", "--setup-keys", "--update-catalog"),
}


def is_reading(argv: Sequence[str]) -> bool:
    """Whether a command, as this kit uses it, changes nothing; what isn't known to be so counts as a change.

    >>> is_reading(("env", "TZ=UTC", "systemctl", "show", "--", "x.service"))
    True
    >>> is_reading(("systemctl", "--no-block", "restart", "--", "x.service")), is_reading(("rm", "/x"))
    (False, False)
    """
    words = list(argv)
    if words[:1] == ["env"]:
        words = list(dropwhile(lambda word: "=" in word, words[1:]))
    if not words:
        return False
    program = words[0].rsplit("/", 1)[-1]
    if program in _CHANGING_OPTIONS:
        return not any(word.startswith(_CHANGING_OPTIONS[program]) for word in words[1:])
    if words[1:] == ["--version"]:
        return True
    if program == "nvidia-smi":
        return words[1:2] == ["topo"] or (bool(words[1:]) and words[1].startswith(("--query", "-q", "-L")))
    if program not in _READING:
        return False
    verbs = _READING[program]
    first = next((word for word in words[1:] if not word.startswith("-")), "")
    return verbs is None or first in verbs
