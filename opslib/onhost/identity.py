"""Says who answers: one JSON line with host name, boot id, machine id, login, kernel, Python and the time."""

import datetime as dt
import json
import os
import platform
import pwd
import socket
from typing import Any, Dict

from opslib.onhost.processes import boot_id


def read_line(path: str) -> str:
    """The first line of a small file, or "" where it can't be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def login() -> str:
    """The name of the effective user, or its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def identity() -> Dict[str, Any]:
    """Who answers, as one JSON object."""
    return {
        "hostname": socket.gethostname(),
        "boot_id": boot_id(),
        "machine_id": read_line("/etc/machine-id"),
        "user": login(),
        "uid": os.geteuid(),
        "kernel": platform.release(),
        "python_version": platform.python_version(),
        "asked_at": dt.datetime.now(tz=dt.timezone.utc).isoformat(),
    }


def main(arguments: Dict[str, Any]) -> int:  # noqa: ARG001
    """Print the identity; always exit status 0."""
    print(json.dumps(identity()), flush=True)
    return 0
