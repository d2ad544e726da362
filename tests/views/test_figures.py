"""Figures of a benchmark: live and static draw the same values, and the static one is the same bytes each time."""

import io
import json
import re

import pytest
from matplotlib.image import imread as plt_read

from opslib.domain.benchmark import BenchmarkLevel, GpuSample, Histogram, Percentiles, ServerSample, Slo
from opslib.views.benchmark_panels import distribution_panels, longest, sweep_panels, time_panels
from opslib.views.figures import FigureDisplay, LiveDisplay, alt_text, live_figure, png_of, svg_of
from opslib.views.theme import MUTED

HISTOGRAM = Histogram(edges=(1.0, 10.0, 100.0), counts=(3, 1))
SAMPLES = {
    "server_samples": tuple(ServerSample(at_s=t, running=4 - t, waiting=t, kv_cache_usage=0.1 * t) for t in range(3)),
    "gpu_samples": tuple(
        GpuSample(
            at_s=t, index=i, utilization_percent=90 + i, power_w=400, memory_used_bytes=2**35, sm_clock_mhz=1980 - t
        )
        for t in range(3)
        for i in (0, 1)
    ),
}


def level(concurrency, throughput, ttft, **changes):
    figure = Percentiles(mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=2 * ttft)
    return BenchmarkLevel(
        concurrency=concurrency, n_requests=10, n_errors=0, duration_s=1.0, request_throughput=10.0, output_throughput=throughput,
        total_input_tokens=100, total_output_tokens=1000, ttft_ms=figure, tpot_ms=figure, itl_ms=figure, e2e_latency_ms=figure,
        histograms={"ttft_ms": HISTOGRAM, "itl_ms": HISTOGRAM},
    ).model_copy(update=changes)  # fmt: skip


LEVELS = [level(1, 60.0, 100.0), level(4, 230.0, 120.0), level(16, 235.0, 300.0, is_valid=False)]


def all_panels():
    return (
        *sweep_panels(LEVELS, slo=Slo(ttft_ms=250.0), baseline=LEVELS[:2]),
        *distribution_panels(LEVELS),
        *time_panels(LEVELS[0].model_copy(update=SAMPLES)),
    )


def test_the_live_figure_draws_the_static_ones_values():
    """Both forms take their lines from the same panels, so they cannot differ."""
    drawn = [(tuple(trace.x), tuple(trace.y)) for trace in live_figure(all_panels()).data]
    assert drawn == [(line.xs, line.ys) for panel in all_panels() for line in panel.lines]


def test_latency_stands_over_throughput_with_the_knee_and_the_slo():
    """The curve's points are (throughput, latency); the knee is that level's throughput, the SLO a line across."""
    _, ttft, tpot = sweep_panels(LEVELS, slo=Slo(ttft_ms=250.0))
    assert [(line.name, line.xs) for line in ttft.lines] == [(part, (60.0, 230.0, 235.0)) for part in ("p50", "p99")]
    assert [(mark.axis, mark.at, mark.text) for mark in ttft.marks] == [("x", 230.0, "knee"), ("y", 250.0, "SLO")]
    assert [mark.text for mark in tpot.marks] == ["knee"]


def test_the_last_good_run_is_dashed():
    """A baseline is drawn beside, in every panel of the sweep, and cannot be taken for the present run."""
    for panel in sweep_panels(LEVELS, baseline=LEVELS[:2]):
        assert [line.is_dashed for line in panel.lines].count(True) == 1
        assert "last good" in next(line.name for line in panel.lines if line.is_dashed)


def test_spread_is_a_share_of_all_samples():
    """The shares of a level's bins come to 100 %."""
    ttft, itl = distribution_panels(LEVELS)
    assert ttft.lines[0].ys == itl.lines[0].ys == (75.0, 25.0)
    assert len(distribution_panels([level(n, 1.0, 1.0) for n in range(1, 20)])[0].lines) == 6


def test_lanes_are_there_for_what_was_sampled():
    """A lane for requests and KV cache, one for each figure of the GPUs with a line for each; none without samples."""
    panels = time_panels(LEVELS[0].model_copy(update=SAMPLES))
    assert [panel.title.split(",")[0] for panel in panels] == [
        "requests in the server", "KV cache in use", "GPU utilization", "GPU power", "GPU memory", "GPU clock",
    ]  # fmt: skip
    assert [line.name for line in panels[2].lines] == ["GPU 0", "GPU 1"]
    assert panels[4].lines[0].ys == (32.0, 32.0, 32.0)
    assert time_panels(LEVELS[0]) == ()


def test_a_single_sample_makes_no_lane():
    """A level too short to be sampled three times has no time series, and the longest level is the one that is shown."""
    short = LEVELS[1].model_copy(update={name: values[:1] for name, values in SAMPLES.items()})
    assert time_panels(short) == ()
    assert longest([LEVELS[0].model_copy(update=SAMPLES), short, LEVELS[2]]).concurrency == 1


def test_throttling_is_marked_in_the_clocks_lane():
    """The first reason to throttle stands where it began."""
    reasons = {2: ("sw_power_cap",)}
    samples = tuple(
        GpuSample(at_s=t, index=0, sm_clock_mhz=1200, throttle_reasons=reasons.get(t, ())) for t in range(3)
    )
    (clock,) = time_panels(LEVELS[0].model_copy(update={"gpu_samples": samples}))
    assert [(mark.at, mark.text) for mark in clock.marks] == [(2.0, "sw_power_cap")]


def test_the_static_figure_is_deterministic_and_searchable():
    """The same values give the same bytes, without a date, with text as text."""
    svg = svg_of(sweep_panels(LEVELS))
    assert svg == svg_of(sweep_panels(LEVELS))
    assert svg.startswith("<svg")
    assert "ttft_ms" in svg
    assert "knee" in svg
    assert "dc:date" not in svg
    assert len(svg) < 60_000


def test_each_line_bears_its_name_at_its_end():
    """Live, p50 and p99 are told apart without a legend; a panel of one line needs no name."""
    texts = [trace.text[-1] for trace in live_figure(sweep_panels(LEVELS)).data]
    assert texts == ["", "p50", "p99", "p50", "p99"]


def test_a_level_that_is_not_valid_is_hollow():
    """A marked level shows in the figure."""
    assert live_figure(sweep_panels(LEVELS)).data[0].marker.symbol == ("circle", "circle", "circle-open")


@pytest.mark.parametrize("levels", [LEVELS[:1], [level(2, 0.0, 1.0, ttft_ms=None, tpot_ms=None)], []])
def test_one_level_an_empty_one_and_none_can_be_drawn(levels):
    """A sweep that ended early still has its figure."""
    assert svg_of(sweep_panels(levels))
    assert live_figure(sweep_panels(levels)) is not None


def test_the_picture_is_a_small_png_with_a_sentence():
    """GitHub strips SVG: the figure is a PNG of its own, with its values in words beside it."""
    bundle = FigureDisplay(sweep_panels(LEVELS), alt_text(LEVELS))._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert len(bundle["image/png"]) < 60_000
    assert bundle["text/plain"] == "Figure: output throughput per second by concurrency: 60 at 1, 230 at 4, 235 at 16."


def test_the_live_form_is_small_and_has_no_script():
    """JupyterLab draws it from data alone; readers without it get the sentence."""
    bundle = LiveDisplay(sweep_panels(LEVELS), alt_text(LEVELS))._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "text/plain"}
    assert len(json.dumps(bundle)) < 30_000


def test_a_picture_lies_on_any_paper():
    """Nothing of a static picture is paper of its own, and nothing in it is as light or as dark as a page."""
    pixels = plt_read(io.BytesIO(png_of(all_panels())), format="png")
    assert pixels[0, 0, 3] == 0
    assert (pixels[..., 3] == 0).mean() > 0.8
    colours = set(re.findall(r"#[0-9a-f]{6}", svg_of(all_panels())))
    assert MUTED in colours
    assert not colours & {"#ffffff", "#000000"}
