"""ss of a rehearsal host: TCP listeners on the host's own loopback address, as iproute2 prints them.

What listens on the host's address ($OPSLIB_LOOPBACK) is shown as 127.0.0.1, for that is what it stands for; other
listeners of the machine are not the host's. Processes are found as ss does: by the sockets open in /proc.
"""

import contextlib
import os
import re
import sys

_LISTEN = "0A"
_LETTERS = "Hltnp"


def main() -> int:
    """Print the listeners asked for; options that the kit does not use are refused (status 1)."""
    words = sys.argv[1:]
    letters = "".join(word[1:] for word in words if re.match(r"-[a-zA-Z]+$", word))
    filters = " ".join(word for word in words if not word.startswith("-"))
    match = re.match(r"^\(?\s*(?:sport\s*=\s*:(\d+))?\s*\)?$", filters)
    unknown = [word for word in words if word.startswith("-") and not re.match("-[%s]+$" % _LETTERS, word)]
    if unknown or not match or "l" not in letters or "t" not in letters:
        what = unknown[0] if unknown else filters or " ".join(words)
        sys.stderr.write("rehearsal host: option %s is not one that this kit uses\n" % what)
        return 1
    if "H" not in letters:
        print("State  Recv-Q Send-Q Local Address:Port Peer Address:PortProcess")
    own = os.environ.get("OPSLIB_LOOPBACK", "127.0.0.1")
    for address, port, inode in _listeners():
        if address == own and (not match.group(1) or port == int(match.group(1))):
            users = _users(inode) if "p" in letters else ""
            print("LISTEN 0      128        127.0.0.1:%d      0.0.0.0:*    %s" % (port, users))
    return 0


def _listeners() -> "list[tuple[str, int, str]]":
    found = []
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                raw, port = fields[1].split(":")
                address = ".".join(str(int(raw[i : i + 2], 16)) for i in (6, 4, 2, 0))
                found.append((address, int(port, 16), fields[9]))
    return found


def _users(inode: str) -> str:
    users = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone, or another user's
            users += _users_in(pid, "socket:[%s]" % inode)
    return "users:(%s)" % ",".join(users) if users else ""


def _users_in(pid: str, wanted: str) -> "list[str]":
    links = "/proc/%s/fd" % pid
    found = [number for number in os.listdir(links) if _target(os.path.join(links, number)) == wanted]
    if not found:
        return []
    with open("/proc/%s/comm" % pid, encoding="utf-8", errors="replace") as file:
        name = file.read().strip()
    return ['("%s",pid=%s,fd=%s)' % (name, pid, number) for number in found]


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
