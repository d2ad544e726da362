"""How long the sliders of `20-plan-memory` take to answer: the story's model, one slider moved after another.

Bound: 100 ms an answer (median), plan and text together, no host asked. Exit code 1 where it is not met.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from opslib.domain.memory import plan_situation
from opslib.domain.memory_situation import Situation
from opslib.views.memory_whatif import WhatIf
from tests.memory_cases import story

N_ROUNDS, MAX_MEDIAN_MS = 20, 100.0
MOVES = {
    "--max-num-seqs": (256, 512, 1024),
    "--max-model-len": (32768, 131072),
    "--gpu-memory-utilization": (0.90, 0.95),
    "--tensor-parallel-size": (8, 4),
}


def what_if() -> WhatIf:
    """The story's plan behind its sliders."""
    inputs = story()
    memory, version = inputs["gpu_total_bytes"], inputs["engine_version"]
    base = Situation.of(
        inputs["model"], inputs["flags"], inputs["weights"], gpu_total_bytes=memory, engine_version=version
    )

    def asked(values: dict[str, float]) -> object:
        changed = base
        for flag, value in values.items():
            changed = changed.with_flag(flag, value)
        return plan_situation(changed)

    return WhatIf("gpu7", asked, {flag: values[-1] for flag, values in MOVES.items()}, 8)


def main() -> int:
    """Print the answers' times as JSON; 0 where the median is within the bound."""
    shown, times_ms = what_if(), []
    for _ in range(N_ROUNDS):
        for flag, values in MOVES.items():
            for value in values:
                shown.sliders[flag].value = value
                began = time.perf_counter()
                shown.answer()
                times_ms.append(1000 * (time.perf_counter() - began))
    median = statistics.median(times_ms)
    figures = {"n": len(times_ms), "median_ms": round(median, 2), "max_ms": round(max(times_ms), 2)}
    print(json.dumps({**figures, "bound_median_ms": MAX_MEDIAN_MS}))
    return int(median > MAX_MEDIAN_MS)


if __name__ == "__main__":
    sys.exit(main())
