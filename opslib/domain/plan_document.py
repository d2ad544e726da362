"""A memory plan as one JSON document, and as lines for a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from opslib.domain.engine_defaults import GIB
from opslib.domain.memory import MemoryPlan
from opslib.domain.memory_remedy import Remedy

PARTS = (
    "total",
    "budget",
    "weights",
    "activation_peak",
    "non_torch",
    "cuda_graphs",
    "kv_cache",
    "headroom",
)
_WIDTH = 100  # of a line for a terminal
_OF_THE_GPU = ("total", "budget", "headroom")  # unknown where the GPU's size is


def plan_document(
    plan: MemoryPlan, remedies: Sequence[Remedy] = (), *, engine_version: str = "", is_gpu_known: bool = True
) -> dict[str, Any]:
    """The plan in the shape of `opslib plan --json`: sizes in GiB per GPU of the rank that binds."""
    terms = {term.name: term for term in plan.terms}
    shown = [name for name in PARTS if name in terms]
    known = {name: is_gpu_known or name not in _OF_THE_GPU for name in shown}
    return {
        "verdict": plan.verdict,
        "summary": plan.summary,
        "cause": plan.cause,
        "engine_version": engine_version or plan.engine_version,
        "binding_rank": plan.binding_rank,
        "per_gpu_gib": {name: _gib(terms[name].expected_bytes) if known[name] else None for name in shown},
        "bands_gib": {
            name: [_gib(terms[name].low_bytes), _gib(terms[name].high_bytes)] if known[name] else None for name in shown
        },
        "sources": {name: terms[name].source for name in shown},
        "kv_cache_tokens": plan.kv_cache_tokens,
        "max_concurrency": plan.max_concurrency,
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_num_seqs,
        "estimated_max_model_len": plan.estimated_max_model_len,
        "flags": {name: {"value": flag.value, "origin": flag.origin} for name, flag in plan.flags.items()},
        "remedies": [remedy_row(remedy) for remedy in remedies],
        "notes": list(plan.notes),
    }


def remedy_row(remedy: Remedy) -> dict[str, Any]:
    """One remedy: flag, value (a number where it is one), costs and reason."""
    return {"flag": remedy.flag, "value": _number(remedy.value), "costs": remedy.cost, "reason": remedy.reason}


def _number(text: str) -> Any:
    if not text:
        return True
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _gib(n_bytes: int) -> float:
    return round(n_bytes / GIB, 4)


def plan_lines(plan: MemoryPlan, remedies: Sequence[Remedy] = ()) -> Iterator[str]:
    """The plan for a terminal: verdict, terms with their bands and sources, what the cache holds, the ways out."""
    yield plan.summary if plan.summary.startswith(plan.verdict) else f"{plan.verdict}: {plan.summary}"
    yield f"{'GiB per GPU':<26}{'low':>9}{'expected':>10}{'high':>9}  where it comes from"
    for term in plan.terms:
        sizes = [f"{size / GIB:.2f}" for size in (term.low_bytes, term.expected_bytes, term.high_bytes)]
        head = f"{term.name:<26}{sizes[0]:>9}{sizes[1]:>10}{sizes[2]:>9}  "
        yield from textwrap.wrap(
            term.source, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
        ) or [head.rstrip()]
    if plan.kv_cache_tokens is not None and plan.max_concurrency is not None:
        yield (
            f"KV cache: {plan.kv_cache_tokens:,} tokens, {plan.max_concurrency:.2f} requests of "
            f"{plan.max_model_len:,} tokens at once"
        )
    for name, flag in plan.flags.items():
        yield f"  {name} {flag.value} ({flag.origin})"
    for remedy in remedies:
        yield f"remedy: {remedy.flag} {remedy.value}".rstrip()
        yield f"  why: {remedy.reason}"
        yield f"  costs: {remedy.cost}"
    yield from (f"note: {note}" for note in plan.notes)
