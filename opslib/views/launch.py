"""The launch, live or played again: phases and both signals over time, GPU memory, restarts, the journal's tail."""

from html import escape

from opslib.domain.engine_figures import EngineFigures
from opslib.domain.facts.gpu import Gpu
from opslib.domain.launch_status import LaunchStatus, answer_words
from opslib.domain.launch_story import LaunchStory
from opslib.domain.states import State
from opslib.views.launch_strips import strips_html, strips_text
from opslib.views.panels import quote
from opslib.views.shown import Shown
from opslib.views.tables import Html, beside, table, text_table
from opslib.views.theme import BLUE, badge, note, pending_badge, state_text

GIB = 2**30
N_JOURNAL_LINES = 12
_NOW, _SEEN, _GPUS = ("signal", "now"), ("at (s)", "what was seen"), ("GPU", "", "memory used")


def launch_panel(
    host: str, unit: str, story: LaunchStory, *, level: str = "DEBUG", search: str = "", is_over: bool = False
) -> Shown:
    """One picture of a launch; of the journal the lines of that level and worse that hold the searched words.

    No launch ends *unknown*: with that state it is still going on, and is shown so; where the watch `is_over` without
    a verdict, that is said.
    """
    status = story.status
    assert status is not None
    state = status.judgement
    is_going_on = state is State.UNKNOWN and not status.state.is_final
    label = pending_badge(status.state.value) if is_going_on else badge(state)
    words = status.waiting_words or status.reason
    summary = f"{unit} {status.state.value}" + (f": {words}" if words else "")
    is_final = status.state.is_final
    signals = [*_signals(status), *(figure_rows(story.figures) if is_final else ())]
    seen = [(f"{mark.at_s:.1f}", mark.text) for mark in story.timeline]
    gpus = [gpu for gpu in status.gpus if gpu.memory_used_bytes]
    left = table(signals, _NOW) + (table([_gpu_row(gpu) for gpu in gpus], _GPUS) if gpus else "")
    html = [
        f'<p style="margin:4px 0">{label} <b>{escape(host)}</b>: {escape(summary)}</p>',
        "" if is_final or status.percent is None else _bar(status.percent, "420px"),
        strips_html(story),
        beside(left, table(seen, _SEEN)),
    ]
    text = [f"{f'… {status.state.value}' if is_going_on else state_text(state)}  {host}: {summary}"]
    text += [*strips_text(story), text_table([*signals, *map(_gpu_words, gpus)], _NOW), text_table(seen, _SEEN)]
    lines = story.journal(N_JOURNAL_LINES, level=level, search=search)
    is_chosen = level != "DEBUG" or bool(search)
    notes = [_chosen_words(level, search, n_found=len(lines))] if is_chosen else []
    if is_over and not is_final:
        notes.append(f"The watch ended here, after {status.elapsed_s:.1f} s, without a verdict; the unit went on.")
    html += [quote(lines) if lines else "", *map(note, notes)]
    return Shown("".join(html), "\n".join([*text, *(f"  | {line}" for line in lines), *notes]))


def figure_rows(figures: EngineFigures) -> list[tuple[str, str]]:
    """What the engine printed of itself, for reading; only what was printed.

    >>> figure_rows(EngineFigures(version="0.32.0", kv_cache_tokens=65536, max_concurrency=64.0))
    [('engine', 'vLLM 0.32.0'), ('KV cache', '65,536 tokens, 64.0 requests of max_model_len at once')]
    """
    kv_cache = (
        figures.available_kv_cache_bytes and f"{figures.available_kv_cache_bytes / GIB:.2f} GiB",
        figures.kv_cache_tokens and f"{figures.kv_cache_tokens:,} tokens",
        figures.max_concurrency and f"{figures.max_concurrency:.1f} requests of max_model_len at once",
    )
    rows = [
        ("engine", f"vLLM {figures.version}" if figures.version else ""),
        ("weights", f"{figures.weights_bytes / GIB:.2f} GiB" if figures.weights_bytes else ""),
        ("KV cache", ", ".join(words for words in kv_cache if words)),
        ("CUDA graphs", f"{figures.cuda_graphs_bytes / GIB:.2f} GiB" if figures.cuda_graphs_bytes else ""),
    ]
    return [row for row in rows if row[1]]


def phase_words(status: LaunchStatus) -> str:
    """The phase and how far it is, for a reader; a dash before the first."""
    if status.phase is None:
        return "-"
    return status.phase.title if status.percent is None else f"{status.phase.title} {status.percent} %"


def _signals(status: LaunchStatus) -> list[tuple[str, str]]:
    health = "closed" if status.health_status_code is None else str(status.health_status_code)
    restarts = f"{status.n_restarts} ({status.budget_words})" if status.budget_words else str(status.n_restarts)
    return [
        ("systemd", f"{status.active_state} ({status.sub_state})" if status.active_state else "not asked yet"),
        ("/health", health),
        *([("answer", words)] if (words := answer_words(status.answer)) else []),
        ("phase", status.waiting_words or phase_words(status)),
        ("restarts", restarts),
        ("invocation", status.invocation_id or "-"),
        ("elapsed", f"{status.elapsed_s:.1f} s"),
        *([("estimate", f"ready in about {status.eta_s:.0f} s")] if status.eta_s else []),
        *([("moves", status.movement.words)] if status.movement.words and not status.state.is_final else []),
        *(("note", said) for said in (*status.notes, status.slow_words) if said),
    ]


def _gpu_row(gpu: Gpu) -> tuple[object, ...]:
    percent = 100 * gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0
    return str(gpu.index), Html(_bar(percent, "110px")), _gpu_words(gpu)[1]


def _gpu_words(gpu: Gpu) -> tuple[str, str]:
    used, total = gpu.memory_used_bytes / GIB, gpu.memory_total_bytes / GIB
    return f"GPU {gpu.index}", f"{used:.1f} of {total:.1f} GiB"


def _chosen_words(level: str, search: str, *, n_found: int) -> str:
    words = f" with {search!r}" if search else ""
    return f"Journal: {'the last lines' if n_found else 'no line'} of level {level} and worse{words}."


def _bar(percent: float, width: str) -> str:
    filled = max(0.0, min(100.0, percent))
    outer = f"width:{width};max-width:100%;height:8px;border-radius:4px;background:rgba(128,128,128,.25);margin:4px 0"
    inner = f"width:{filled:.0f}%;height:8px;border-radius:4px;background:{BLUE}"
    return f'<div style="{outer}" title="{filled:.0f} %"><div style="{inner}"></div></div>'
