"""How fast this host hashes: each hasher on one core, how many at once, and how fast a file here is read.

Arguments: {"path": directory}. Prints one JSON line; takes about a second.
"""

import json
import os
import time
from typing import Any, Dict, Optional

from opslib.onhost.digest_hashers import WORTH_BYTES, choose_hasher

READ_BYTES = 256 << 20
READ_S = 1.0
CHUNK = 4 << 20


def read_rate(root: str) -> Optional[float]:
    """Bytes per second at which the largest file of a directory is read, as far as it may be; None without one."""
    try:
        paths = [entry.path for entry in os.scandir(root) if entry.is_file()]
        path = max(paths, key=os.path.getsize)
        size = os.path.getsize(path)
        with open(path, "rb", buffering=0) as file:
            file.seek(size // 3)  # its beginning was just read for its header
            began_at = time.perf_counter()
            n_read = 0
            while n_read < READ_BYTES and time.perf_counter() - began_at < READ_S:
                chunk = file.read(CHUNK)
                if not chunk:
                    break
                n_read += len(chunk)
    except (OSError, ValueError):
        return None
    return n_read / max(1e-6, time.perf_counter() - began_at) if n_read else None


def main(arguments: Dict[str, Any]) -> int:
    """Print the figures; exit status 0."""
    root = str(arguments["path"])
    hasher = choose_hasher(root if os.path.isdir(root) else "/", WORTH_BYTES)
    rate = read_rate(root)
    print(json.dumps(dict(hasher, read_bytes_per_s=int(rate) if rate else None)), flush=True)
    return 0
