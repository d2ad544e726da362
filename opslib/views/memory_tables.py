"""The tables of memory planning: parallel sizes side by side, predictions beside what launches did."""

from collections.abc import Iterable, Sequence

from opslib.domain.memory_ledger import UNITS, LedgerEntry
from opslib.domain.parallel_table import ParallelRow
from opslib.domain.states import State
from opslib.views.shown import Shown
from opslib.views.tables import Row, table, text_table
from opslib.views.theme import headline, state_text

GIB, KIB = 2**30, 2**10
PARALLEL_COLUMNS = (
    "tensor x pipeline",
    "GPUs",
    "verdict",
    "weights, GiB per GPU",
    "KV cache, GiB per GPU",
    "KV tokens",
    "requests at once",
    "KV cache, KiB per token and rank",
    "all-reduce, KiB per token and rank",
)
LEDGER_COLUMNS = ("launch", "component", "predicted", "actual", "difference")


def parallel_rows(rows: Iterable[ParallelRow]) -> list[tuple[object, ...]]:
    """One row per size, in PARALLEL_COLUMNS."""
    return [
        (
            f"{row.tensor_parallel_size} x {row.pipeline_parallel_size}",
            row.n_gpus,
            row.verdict,
            f"{row.weights_bytes / GIB:.2f}" if row.weights_bytes else "",
            f"{row.kv_cache_bytes / GIB:.2f}" if row.weights_bytes else "",
            f"{row.kv_cache_tokens:,}" if row.weights_bytes else "",
            f"{row.max_concurrency:.2f}" if row.weights_bytes else "",
            f"{row.kv_bytes_per_token / KIB:.1f}" if row.weights_bytes else "",
            f"{row.all_reduce_bytes_per_token / KIB:.0f}" if row.weights_bytes else "",
        )
        for row in rows
    ]


def ledger_rows(entries: Iterable[LedgerEntry]) -> list[tuple[object, ...]]:
    """One row per component of each launch, in LEDGER_COLUMNS."""
    return [
        (
            entry.record.partition("-")[0],
            f"{name}, {UNITS.get(name, 'GiB')}",
            _said(predicted),
            _said(actual),
            _said(off),
        )
        for entry in entries
        for name, predicted, actual, off in entry.rows()
    ]


def _said(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def memory_panel(
    host: str, state: State, summary: str, tables: Sequence[tuple[str, Sequence[str], Sequence[Row]]]
) -> Shown:
    """An answer of several tables, each with its caption."""
    html = headline(state, summary, host=host)
    text = [f"{state_text(state)}  {host}: {summary}"]
    for caption, columns, rows in tables:
        html += table(rows, columns, caption=caption)
        text += ["", *([caption] if caption else []), text_table(rows, columns)]
    return Shown(html, "\n".join(text))
