"""sudo of a rehearsal host: runs the rest of its command line as whoever calls, or refuses as a real sudo does.

The file `../etc/sudo-refused` (beside the directory in which this program lies) makes it refuse.
"""

import os
import sys

_PASSED_OVER = ("-n", "--non-interactive")


def main() -> int:
    """Run the command in place, or say why not (status 1)."""
    words, lists, unknown = _split(sys.argv[1:])
    if unknown:
        return _refuse("rehearsal host: option %s is not one that this kit uses" % unknown)
    here = os.path.dirname(os.path.realpath(__file__))
    if os.path.exists(os.path.join(here, "..", "etc", "sudo-refused")):
        return _refuse("sudo: a password is required")
    if lists:
        return _list(words)
    if not words:
        return _refuse("usage: sudo [-n] [-u user] [--] command [arg ...]")
    return _execute(words)


def _split(words: "list[str]") -> "tuple[list[str], bool, str]":
    lists = False
    while words and words[0].startswith("-"):
        option, words = words[0], words[1:]
        if option == "--":
            break
        if option in ("-u", "--user"):
            words = words[1:]
        elif option == "-l":
            lists = True
        elif option not in _PASSED_OVER and not option.startswith("--user="):
            return words, lists, option
    return words, lists, ""


def _execute(words: "list[str]") -> int:
    os.environ.update(
        SUDO_UID=str(os.getuid()),
        SUDO_GID=str(os.getgid()),
        SUDO_USER=os.environ.get("USER", "ops"),
        SUDO_COMMAND=" ".join(words),
    )
    try:
        os.execvp(words[0], words)  # noqa: S606 - the caller's command as it is
    except FileNotFoundError:
        return _refuse("sudo: %s: command not found" % words[0])
    except OSError as error:
        return _refuse("sudo: unable to execute %s: %s" % (words[0], error.strerror))


def _list(words: "list[str]") -> int:
    user = os.environ.get("USER", "ops")
    if words:
        print(" ".join(words))
    else:
        print("User %s may run the following commands on this host:\n    (ALL : ALL) NOPASSWD: ALL" % user)
    return 0


def _refuse(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
