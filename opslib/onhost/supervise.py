"""Run one command whose whole process tree ends when the link to the caller goes."""

import subprocess
import sys
from typing import Any, Dict

from opslib.onhost.boot import adopt_orphans, end_descendants


def main(arguments: Dict[str, Any]) -> int:
    """Run `arguments["argv"]`, hand its output through, and return its exit status (127: no such program)."""
    adopt_orphans()
    try:
        process = subprocess.Popen(arguments["argv"], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write("opslib: %s: %s\n" % (arguments["argv"][0], error.strerror))
        return 127 if isinstance(error, FileNotFoundError) else 126
    status = process.wait()
    end_descendants()
    return status if status >= 0 else 128 - status
