"""What a worker of the stand-in engine is told when it starts, and how it says that a stage failed."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from opslib.rehearsal.standin.engine_checkpoint import Checkpoint
from opslib.rehearsal.standin.engine_memory import MemorySums
from opslib.rehearsal.standin.ledger import Ledger


class StageError(Exception):
    """What ends this worker's part: the traceback's lines, and the message that the engine core repeats."""

    def __init__(self, lines: List[str], message: str) -> None:
        super().__init__(message)
        self.lines = lines
        self.message = message


class Plan:
    """Everything that a worker knows when it starts (inherited through fork)."""

    def __init__(
        self,
        *,
        settings: Dict[str, Any],
        flags: Dict[str, Any],
        checkpoint: Checkpoint,
        sums: MemorySums,
        ledger: Ledger,
        gpus: List[int],
    ) -> None:
        self.figures: Dict[str, Any] = settings["engine"]
        self.clock_factor = float(settings["clock_factor"])
        self.flags = flags
        self.checkpoint = checkpoint
        self.sums = sums
        self.ledger = ledger
        self.gpus = gpus
        self.gpu_name = str(settings["gpus"]["name"])

    def seconds(self, phase: str) -> float:
        """How long a phase takes according to the log."""
        return float(self.figures["seconds"][phase])

    def sleep(self, seconds: float) -> None:
        """Let that time pass, shortened by the clock factor."""
        time.sleep(seconds / self.clock_factor)
