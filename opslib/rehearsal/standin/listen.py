"""A program that holds a TCP port and does nothing else: `listen PORT`; what a scenario puts in the engine's way."""

from __future__ import annotations

import os
import socket
import sys
import threading


def main() -> int:
    """Listen until killed."""
    address = os.environ.get("OPSLIB_LOOPBACK") or "0.0.0.0"  # noqa: S104
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, int(sys.argv[1])))
        listener.listen(16)
        threading.Event().wait()
    return 0
