"""How often the diagnosis names the right cause, over the handed journals and changed copies of them.

Prints one JSON document with figures per family; exits with 1 where one is past its bound: right in at least 95 %,
confidently wrong in at most 1 %, every healthy journal "none", 70 % of the right answers "high", the first quoted line
a deciding one in 90 %. Takes about half a minute.
"""

import datetime as dt
import json
import platform
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

# run from a checkout: the cases live beside the tests
sys.path.insert(0, str(Path(__file__).parents[1]))

from opslib.domain.diagnosis import Diagnosis, diagnose
from opslib.domain.journal_text import parse_input
from tests.domain.journal_cases import MUTATIONS, Case, load_cases

BOUNDS = {
    "right": (0.95, "min"),
    "confidently_wrong": (0.01, "max"),
    "healthy_none": (1.0, "min"),
    "high_of_right": (0.70, "min"),
    "decided_first": (0.90, "min"),
    "changed_right": (0.97, "min"),
}


def share(part: int, whole: int) -> float:
    """A fraction, 1.0 of nothing."""
    return round(part / whole, 4) if whole else 1.0


def judge(cases: list[Case]) -> tuple[list[tuple[Case, Diagnosis]], list[float]]:
    """Every case's diagnosis, and the milliseconds that each took."""
    found, times = [], []
    for case in cases:
        began = time.perf_counter()
        found.append((case, diagnose(parse_input(case.text))))
        times.append((time.perf_counter() - began) * 1000)
    return found, times


def figures(found: list[tuple[Case, Diagnosis]]) -> dict[str, float]:
    """The shares that the bounds speak of."""
    right = [(case, diagnosis) for case, diagnosis in found if case.accepts(diagnosis.cause)]
    n_wrong = sum(not case.accepts(d.cause) and d.confidence == "high" for case, d in found)
    healthy = [d for case, d in found if case.truth["cause"] == "none"]
    told = [(case, d) for case, d in found if case.truth["cause"] not in {"none", "unknown"}]
    return {
        "right": share(len(right), len(found)),
        "confidently_wrong": share(n_wrong, len(found)) if found else 0.0,
        "healthy_none": share(sum(d.cause == "none" for d in healthy), len(healthy)),
        "high_of_right": share(sum(d.confidence == "high" for _, d in right), len(right)),
        "decided_first": share(sum(case.is_decided_by(d) for case, d in told), len(told)),
    }


def families(found: list[tuple[Case, Diagnosis]]) -> dict[str, str]:
    """Per family: right of all."""
    n_all = Counter(case.family for case, _ in found)
    n_right = Counter(case.family for case, d in found if case.accepts(d.cause))
    return {family: f"{n_right[family]}/{n}" for family, n in sorted(n_all.items())}


def changed_right(cases: list[Case]) -> float:
    """The share of right answers over all changed copies."""
    answers = [
        case.accepts(diagnose(parse_input(change(case))).cause) for change in MUTATIONS.values() for case in cases
    ]
    return share(sum(answers), len(answers))


def main() -> int:
    """Measures, prints, and says whether all bounds hold."""
    cases = load_cases()
    found, times = judge(cases)
    values = {**figures(found), "changed_right": changed_right(cases)}
    past = [n for n, (bound, kind) in BOUNDS.items() if (values[n] < bound if kind == "min" else values[n] > bound)]
    document: dict[str, Any] = {
        "benchmark": "diagnosis_accuracy",
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "system": platform.system(), "processor": platform.machine()},
        "n": len(cases),
        "n_changed": len(cases) * len(MUTATIONS),
        "median_ms": round(statistics.median(times), 2),
        "figures": values,
        "families": families(found),
        "wrong": [[case.name, case.truth["cause"], d.cause] for case, d in found if not case.accepts(d.cause)],
        "past_bounds": past,
    }
    print(json.dumps(document, indent=1))
    return 1 if past else 0


if __name__ == "__main__":
    sys.exit(main())
