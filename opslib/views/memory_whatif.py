"""Sliders that ask the planner again: what if there were fewer sequences, shorter requests, another share."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from opslib.domain.memory import MemoryPlan
from opslib.views.memory import alt_text, bar_of, memory_figure
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown

# flag -> (what the slider is called, the values it offers; None: filled in from the plan)
CHOICES: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "--max-num-seqs": ("max_num_seqs", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)),
    "--max-model-len": (
        "max_model_len",
        (2048, 4096, 8192, 16384, 32768, 65536, 131072, 196608, 262144, 524288, 1048576),
    ),
    "--gpu-memory-utilization": (
        "gpu_memory_utilization",
        (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98),
    ),
    "--tensor-parallel-size": ("tensor_parallel_size", (1, 2, 4, 8)),
}
COLUMNS = ("GiB per GPU", "low", "expected", "high")
_SHOWN = ("weights", "activation_peak", "non_torch", "cuda_graphs", "kv_cache", "headroom")
GIB = 2**30


def answer_of(host: str, plan: MemoryPlan) -> Shown:
    """A what-if's answer: verdict, terms, tokens."""
    rows = [
        (term.name, *(f"{size / GIB:.2f}" for size in (term.low_bytes, term.expected_bytes, term.high_bytes)))
        for term in plan.terms
        if term.name in _SHOWN
    ]
    notes = []
    if plan.kv_cache_tokens is not None and plan.max_concurrency is not None:
        tokens = f"{plan.kv_cache_tokens:,} tokens, {plan.max_concurrency:.2f} requests of {plan.max_model_len:,}"
        notes.append(f"KV cache: {tokens} at once")
    return answer_panel(host, plan.state, plan.summary, rows=rows, columns=COLUMNS, notes=notes)


def live_figure(plan: MemoryPlan) -> dict[str, Any]:
    """The plan's bar for a live page, and its sentence for the file."""
    bars = [bar_of(plan, f"each of {plan.n_gpus} GPUs")]
    figure = memory_figure(bars).to_plotly_json()
    return {
        "application/vnd.plotly.v1+json": json.loads(json.dumps(figure, default=list)),
        "text/plain": alt_text(bars),
    }


class WhatIf:
    """The sliders and their answer; what stands in the file is the last answer, without any of this."""

    def __init__(
        self, host: str, asked: Callable[[Mapping[str, Any]], MemoryPlan], start: Mapping[str, Any], n_gpus: int
    ) -> None:
        self.host = host
        self.asked = asked
        self.handle: DisplayHandle | None = None
        self.figure: DisplayHandle | None = None
        self.sliders = {flag: self._slider(flag, start[flag], n_gpus) for flag in CHOICES if start.get(flag)}

    def _slider(self, flag: str, value: Any, n_gpus: int) -> widgets.SelectionSlider:
        name, offered = CHOICES[flag]
        options = sorted({*offered, value})
        if flag == "--tensor-parallel-size":
            options = [size for size in options if size <= max(n_gpus, value)]
        slider = widgets.SelectionSlider(
            options=options,
            value=value,
            description=name,
            style={"description_width": "180px"},
            layout={"width": "560px"},
            continuous_update=True,
        )
        slider.observe(self._changed, names="value")
        return slider

    @property
    def values(self) -> dict[str, Any]:
        """What the sliders stand at, by flag."""
        return {flag: slider.value for flag, slider in self.sliders.items()}

    def answer(self) -> Shown:
        """The plan for what the sliders stand at."""
        return answer_of(self.host, self.asked(self.values))

    def _changed(self, _: Any) -> None:
        if self.handle is None or self.figure is None:
            return
        plan = self.asked(self.values)
        self.handle.update(answer_of(self.host, plan))  # type: ignore[no-untyped-call]
        self.figure.update(live_figure(plan), raw=True)  # type: ignore[no-untyped-call]

    def show(self) -> None:
        """The sliders, and below them the answer that follows them."""
        display(widgets.VBox(list(self.sliders.values())))  # type: ignore[no-untyped-call]
        plan = self.asked(self.values)
        self.handle = display(answer_of(self.host, plan), display_id=True)  # type: ignore[no-untyped-call]
        self.figure = display(live_figure(plan), raw=True, display_id=True)  # type: ignore[no-untyped-call]
