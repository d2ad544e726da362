"""A program that holds GPU memory in the ledger: `hold-gpu-memory GIB INDEX...`; a neighbour on the GPU."""

from __future__ import annotations

import sys
import time

from opslib.rehearsal.standin.ledger import GIB, load_settings, open_ledger


def main() -> int:
    """Hold until killed."""
    ledger = open_ledger(load_settings())
    ledger.hold({int(gpu): int(float(sys.argv[1]) * GIB) for gpu in sys.argv[2:]}, "python3")
    while True:
        time.sleep(0.5)
        ledger.beat()
