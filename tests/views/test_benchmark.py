"""The benchmark's panel: all numbers in text and HTML, nothing that needs a script, everything escaped."""

from opslib.domain.benchmark_judge import judge_benchmark
from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.views.benchmark import BenchmarkView, progress_line


def level(concurrency, *errors, **changes):
    good = {
        "sent_at_s": 0.0,
        "ttft_ms": 1234.5,
        "e2e_latency_ms": 2000.0,
        "itl_ms": [10.0, 20.0],
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "error": None,
    }
    requests = [good, *({**good, "error": error} for error in errors)]
    line = {
        "concurrency": concurrency, "n_requests": len(requests), "duration_s": 2.0, "server": {},
        "error_messages": {"http_503": "<b>overloaded</b>"}, "client_cpu_share": 0.1, "loop_lag_p99_ms": 1.0,
    }  # fmt: skip
    return summarize([LevelRun({**line, **changes}, requests)])


def view(*levels):
    return BenchmarkView(judge_benchmark(levels, host="rehearsal", model="m"))


def test_it_names_its_host_and_state_in_both_forms():
    """Every output names its host and says its state in a word."""
    bundle = view(level(1), level(4))._repr_mimebundle_()
    assert bundle["text/plain"].startswith("✓ ok  rehearsal: ")
    assert "✓ ok" in bundle["text/html"]
    assert "rehearsal" in bundle["text/html"]


def test_the_numbers_are_a_table_and_the_figure_is_inline():
    """The static state holds the numbers, an inline figure, and no script."""
    html = view(level(1), level(4)).html
    assert "<td" in html
    assert "1,234" in html
    assert "<svg" in html
    assert "<script" not in html


def test_the_figure_can_be_left_to_a_picture():
    """Where the figure is displayed as a picture of its own, the panel does not show it twice."""
    report = view(level(1)).report
    assert "<svg" not in BenchmarkView(report, has_figure=False).html


def test_progress_is_one_line():
    """A running level is told in one line, failures only where there are some."""
    line = {"concurrency": 4, "n_done": 3, "n_requests": 8, "n_errors": 1, "n_chunks": 1900, "elapsed_s": 2.5}
    assert progress_line(line) == "concurrency 4: 3 of 8 requests, 1 failed, 1,900 chunks in 2.5 s"


def test_text_columns_are_aligned():
    """The text form is a table too."""
    lines = view(level(1), level(4)).text.splitlines()
    assert lines[1].split()[:2] == ["concurrency", "requests"]
    assert len(lines[1]) == len(lines[2]) == len(lines[3])


def test_a_marked_level_says_why():
    """A level that is not valid carries a star, and the reason stands below the table."""
    text = view(level(1), level(4, loop_lag_p99_ms=9.0)).text
    assert "\n4 *" in text
    assert "* concurrency 4: client woke 9.0 ms late (p99)" in text


def test_errors_show_the_servers_words_escaped():
    """What the server said is evidence, never markup."""
    shown = view(level(1, "http_503"))
    assert "concurrency 1: 1 x http_503: <b>overloaded</b>" in shown.text
    assert "<b>overloaded" not in shown.html
    assert "&lt;b&gt;overloaded" in shown.html


def test_a_report_without_levels_is_one_line():
    """Nothing measured: the sentence says so, without an empty table."""
    assert view().text == "? unknown  rehearsal: no level was measured"
    assert "<table" not in view().html
