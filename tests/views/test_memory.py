"""A memory plan as figure, tables and sliders."""

from opslib.domain.memory import plan_memory, plan_situation
from opslib.domain.memory_ledger import LedgerEntry
from opslib.domain.memory_situation import Situation
from opslib.domain.parallel_table import parallel_table
from opslib.domain.states import State
from opslib.views.memory import COLOURS, alt_text, bar_of, memory_figure, memory_png, memory_svg
from opslib.views.memory_tables import LEDGER_COLUMNS, PARALLEL_COLUMNS, ledger_rows, memory_panel, parallel_rows
from opslib.views.memory_whatif import WhatIf
from tests.memory_cases import story


def situation():
    inputs = story()
    return Situation.of(
        inputs["model"],
        inputs["flags"],
        inputs["weights"],
        gpu_total_bytes=inputs["gpu_total_bytes"],
        engine_version=inputs["engine_version"],
    )


def bars():
    plan = plan_memory(**story(utilization=0.9))
    return [bar_of(plan, f"GPU {index}", others_gib=held) for index, held in enumerate([0.0, 4.0])]


def test_a_bar_comes_to_its_gpu():
    """Parts and headroom add up to the memory, whoever else holds some."""
    for bar in bars():
        assert len(bar.parts) == len(COLOURS)
        assert abs(sum(bar.parts) - bar.total_gib) < 1e-6 or bar.taken_gib > bar.total_gib


def test_live_and_static_figures_show_the_same():
    """Plotly and matplotlib from the same bars; the static one is the same bytes each time."""
    figure = memory_figure(bars())
    assert {trace.name for trace in figure.data} >= {"weights", "kv_cache", "other processes"}
    assert memory_svg(bars()) == memory_svg(bars())
    assert "kv_cache" in memory_svg(bars())
    assert memory_png(bars()).startswith(b"\x89PNG")
    assert "#ffffff" not in memory_svg(bars())  # no paper of its own: it lies on a dark page as well
    assert alt_text(bars()).startswith("Figure: memory planned per GPU: GPU 0 ")


def test_parallel_sizes_stand_side_by_side():
    """Every size that eight GPUs allow; ranks of a pipeline exchange no sums, more ranks send more."""
    table = parallel_table(situation(), 8)
    sizes = [(row.tensor_parallel_size, row.pipeline_parallel_size) for row in table]
    assert sizes[0] == (1, 1)
    assert (8, 1) in sizes
    assert (2, 4) in sizes
    by_size = {(row.tensor_parallel_size, row.pipeline_parallel_size): row for row in table}
    assert by_size[(1, 1)].verdict == "gpu-memory/weights"
    assert by_size[(1, 4)].all_reduce_bytes_per_token == 0
    assert by_size[(8, 1)].all_reduce_bytes_per_token > by_size[(4, 1)].all_reduce_bytes_per_token
    assert by_size[(4, 1)].all_reduce_bytes_per_token == 62 * 2 * 3072 * 2 * 2 * 3 // 4
    panel = memory_panel("gpu7", State.OK, "sizes", [("", PARALLEL_COLUMNS, parallel_rows(table))])
    assert "4 x 1" in panel.text
    assert "4 x 1" in panel.html


def test_the_ledger_is_a_table_of_predicted_and_actual():
    """One row per component, with its unit."""
    entry = LedgerEntry(
        record="20261129T1-x",
        host="gpu7",
        model="m",
        predicted={"weights": 54.0},
        actual={"weights": 57.5, "kv_cache_tokens": 428208.0},
    )
    assert ledger_rows([entry]) == [
        ("20261129T1", "weights, GiB", "54.00", "57.50", "3.50"),
        ("20261129T1", "kv_cache_tokens, tokens", "", "428,208", ""),
    ]
    assert len(LEDGER_COLUMNS) == 5


def test_sliders_answer():
    """Moving max_num_seqs to 256 makes the story fit; no host is asked (how fast: benchmarks/what_if.py)."""
    start = {"--max-num-seqs": 1024, "--max-model-len": 131072, "--gpu-memory-utilization": 0.95}
    base = situation()

    def asked(values):
        changed = base
        for flag, value in values.items():
            changed = changed.with_flag(flag, value)
        return plan_situation(changed)

    what_if = WhatIf("gpu7", asked, {**start, "--tensor-parallel-size": 4}, 8)
    assert "gpu-memory" not in what_if.answer().text
    assert "does not fit" in what_if.answer().text
    what_if.sliders["--max-num-seqs"].value = 256
    assert "fits" in what_if.answer().text
