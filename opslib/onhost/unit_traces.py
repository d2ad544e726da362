"""What systemd leaves behind in files whenever it starts a unit or reads the units anew: cheaper than asking it."""

import os
from typing import Tuple

_RUN = "/run/systemd"
_READ_ANEW = ("systemd-units-load", "generator")  # by `daemon-reload`: touched from systemd 248 on, made anew by any


def traces_of(unit: str, *, run: str = _RUN) -> Tuple[str, ...]:
    """The unit's present invocation ("" where there is no trace of one), and when the units were read.

    Where the first is what systemd itself says (237 and newer, system scope), no start goes by without a trace.
    """
    try:
        invocation_id = os.readlink("%s/units/invocation:%s" % (run, unit))
    except OSError:
        invocation_id = ""
    return (invocation_id, *(_changed_at("%s/%s" % (run, name)) for name in _READ_ANEW))


def _changed_at(path: str) -> str:
    try:
        return str(os.stat(path).st_mtime_ns)
    except OSError:
        return ""
