"""Figures of a sweep: live and static draw the same values, and the static one is the same bytes each time."""

import pytest

from opslib.domain.benchmark import BenchmarkLevel, Percentiles
from opslib.views.figures import figure_display, panels, throughput_figure, throughput_svg


def level(concurrency, throughput, ttft, **changes):
    figure = Percentiles(mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=2 * ttft)
    return BenchmarkLevel(
        concurrency=concurrency, n_requests=10, n_errors=0, duration_s=1.0, request_throughput=10.0, output_throughput=throughput,
        total_input_tokens=100, total_output_tokens=1000, ttft_ms=figure, tpot_ms=figure, itl_ms=figure, e2e_latency_ms=figure,
    ).model_copy(update=changes)  # fmt: skip


LEVELS = [level(1, 60.0, 100.0), level(4, 230.0, 120.0), level(16, 235.0, 300.0, is_valid=False)]


def test_the_live_figure_draws_the_static_ones_values():
    """Both figures take their lines from one function, so they cannot differ."""
    drawn = [tuple(trace.y) for trace in throughput_figure(LEVELS).data]
    assert drawn == [line.values for panel in panels(LEVELS) for line in panel.lines]


def test_the_static_figure_is_deterministic_and_searchable():
    """The same values give the same bytes, without a date, with text as text."""
    svg = throughput_svg(LEVELS)
    assert svg == throughput_svg(LEVELS)
    assert svg.startswith("<svg")
    assert "ttft_ms" in svg
    assert "dc:date" not in svg
    assert len(svg) < 40_000


def test_the_knee_is_drawn():
    """The knee is named in the static figure and a line in the live one."""
    assert "knee" in throughput_svg(LEVELS)
    assert throughput_figure(LEVELS).layout.shapes
    assert "knee" not in throughput_svg(LEVELS[:2])


def test_a_level_that_is_not_valid_is_hollow():
    """A marked level shows in the figure."""
    assert throughput_figure(LEVELS).data[0].marker.symbol == ("circle", "circle", "circle-open")


@pytest.mark.parametrize("levels", [LEVELS[:1], [level(2, 0.0, 1.0, ttft_ms=None, tpot_ms=None)], []])
def test_one_level_an_empty_one_and_none_can_be_drawn(levels):
    """A sweep that ended early still has its figure."""
    assert throughput_svg(levels)
    assert throughput_figure(levels) is not None


def test_the_picture_is_a_small_png_with_a_sentence():
    """GitHub strips SVG: the figure is a PNG of its own, with its values in words beside it."""
    bundle = figure_display(LEVELS)._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert len(bundle["image/png"]) < 60_000
    assert bundle["text/plain"] == "Figure: output throughput per second by concurrency: 60 at 1, 230 at 4, 235 at 16."
