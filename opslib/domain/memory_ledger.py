"""What was predicted of earlier launches against what they then did, and what that teaches for the next plan."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from opslib.domain.engine_figures import EngineFigures
from opslib.domain.memory_situation import Calibration
from opslib.domain.states import Value

GIB = 2**30
_AGREE_GIB = 0.15  # launches whose differences lie closer together than this (or 2 % of the figure) agree
_NEEDED = 2
_LEARNT = ("weights", "overhead", "cuda_graphs")
UNITS = {"kv_cache_tokens": "tokens", "max_concurrency": "requests", "ready_s": "s"}


class LedgerEntry(Value):
    """One launch: figures predicted and read from its journal, by component (GiB per GPU but for UNITS)."""

    record: str
    host: str
    model: str
    launched_at: str = ""
    max_num_seqs: int | None = None
    predicted: Mapping[str, float] = {}
    actual: Mapping[str, float] = {}

    def rows(self) -> list[tuple[str, float | None, float, float | None]]:
        """Component, predicted, actual, and the difference, for all that the journal told."""
        return [
            (name, self.predicted.get(name), actual, _difference(self.predicted.get(name), actual))
            for name, actual in self.actual.items()
        ]


def _difference(predicted: float | None, actual: float) -> float | None:
    return None if predicted is None else round(actual - predicted, 4)


def predicted_figures(plan: Mapping[str, Any]) -> dict[str, float]:
    """The components of a recorded plan (`MemoryPlan` as JSON)."""
    terms = {term["name"]: term["expected_bytes"] / GIB for term in plan.get("terms") or ()}
    found = {name: terms[name] for name in ("weights", "kv_cache", "cuda_graphs") if name in terms}
    if {"activation_peak", "non_torch"} <= terms.keys():
        found["overhead"] = terms["activation_peak"] + terms["non_torch"]
    for name in ("kv_cache_tokens", "max_concurrency"):
        if plan.get(name) is not None:
            found[name] = float(plan[name])
    return {name: round(value, 4) for name, value in found.items()}


def actual_figures(
    figures: EngineFigures, *, budget_gib: float | None = None, ready_s: float | None = None
) -> dict[str, float]:
    """The components that a launch's journal tells; the overhead is what its budget leaves unexplained."""
    sizes = {
        "weights": figures.weights_bytes,
        "kv_cache": figures.available_kv_cache_bytes,
        "cuda_graphs": figures.cuda_graphs_bytes,
    }
    found = {name: round(size / GIB, 4) for name, size in sizes.items() if size is not None}
    if budget_gib and {"weights", "kv_cache"} <= found.keys():
        found["overhead"] = round(budget_gib - found["weights"] - found["kv_cache"], 4)
    others = {
        "kv_cache_tokens": figures.kv_cache_tokens,
        "max_concurrency": figures.max_concurrency,
        "ready_s": ready_s,
    }
    return found | {name: float(value) for name, value in others.items() if value is not None}


def calibrate(entries: Iterable[LedgerEntry], *, model: str, max_num_seqs: int | None = None) -> Calibration | None:
    """Corrections per component where two or more launches of the same model agree; None where nothing was learnt.

    The overhead counts only from launches with the same --max-num-seqs: it is mostly the sampler's.
    """
    same = [entry for entry in entries if entry.model == model]
    learnt: dict[str, float] = {}
    spread = 0.0
    for name in _LEARNT:
        used = [e for e in same if name != "overhead" or max_num_seqs in {None, e.max_num_seqs}]
        pairs = [(e.predicted[name], e.actual[name]) for e in used if name in e.predicted and name in e.actual]
        differences = [actual - predicted for predicted, actual in pairs]
        if len(differences) < _NEEDED:
            continue
        width = max(differences) - min(differences)
        if width <= max(_AGREE_GIB, 0.02 * fmean(actual for _, actual in pairs)):
            learnt[name] = fmean(differences)
            spread = max(spread, width)
    if not learnt:
        return None
    graphs = [entry.actual["cuda_graphs"] for entry in same if "cuda_graphs" in entry.actual]
    return Calibration(
        weights_gib=learnt.get("weights"),
        overhead_gib=learnt.get("overhead"),
        graphs_gib=round(fmean(graphs), 3) if "cuda_graphs" in learnt else None,
        spread_gib=max(0.1, spread),
        n_launches=len(same),
    )


def calibration_note(calibration: Calibration, entries: Sequence[LedgerEntry]) -> str:
    """What was learnt, in one sentence."""
    words = {
        "weights": calibration.weights_gib,
        "activation peak and non-torch": calibration.overhead_gib,
    }
    told = [f"{name} {value:+.2f} GiB" for name, value in words.items() if value is not None]
    told += [f"CUDA graphs {calibration.graphs_gib:.2f} GiB"] if calibration.graphs_gib is not None else []
    return f"calibrated by {calibration.n_launches} of {len(entries)} earlier launches here: {', '.join(told)}"
