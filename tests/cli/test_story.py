"""The story in the terminal: calm, complete, plain where it is no terminal."""

import pytest

from opslib.cli import story as story_module
from opslib.cli.story import Story, plain_table


@pytest.fixture
def told(capsys):
    """Tell events and give the lines that were printed."""

    def told(*events):
        story = Story()
        for event in events:
            story.tell({"at": "2026-11-29T18:15:03.123+00:00", "section": "launch", **event})
        return capsys.readouterr().out.splitlines()

    return told


def test_line_has_time_section_state_sentence(told):
    """One line says when, where, how and what."""
    line = told({"kind": "section-ended", "state": "critical", "text": "worker died"})[0]
    assert line.split() == ["18:15:03", "launch", "✗", "critical", "worker", "died"]


def test_progress_within_a_phase_is_told_once(told):
    """A phase that goes on by percent is one line, the next phase another."""
    events = [{"kind": "progress", "text": f"loading weights {percent} %"} for percent in range(0, 101, 5)]
    assert len(told(*events, {"kind": "progress", "text": "compiling"})) == 2


def test_long_phase_is_told_again(told, monkeypatch):
    """A phase that takes long shows that it moves."""
    monkeypatch.setattr(story_module, "PROGRESS_EVERY_S", 0.0)
    assert len(told(*[{"kind": "progress", "text": f"loading {percent} %"} for percent in (1, 50)])) == 2


def test_same_sentence_twice_is_told_once(told):
    """A sentence that comes again at once is told once; what it quotes is not lost."""
    lines = told(
        {"kind": "line", "text": "died", "state": "critical"},
        {"kind": "evidence", "text": "died", "state": "critical", "lines": ["CUDA out of memory"]},
    )
    assert len(lines) == 2
    assert lines[1].strip() == "│ CUDA out of memory"


@pytest.mark.parametrize(
    "event",
    [{}, {"kind": None, "text": None}, {"kind": "x", "lines": "a\nb"}, {"at": "never", "text": "t", "rows": []}],
)
def test_odd_events_are_told_as_far_as_they_go(told, event):
    """An event without a kind, a time or a text is no reason to stop."""
    told({"at": None, **event})


def test_markup_is_not_interpreted(told):
    """Square brackets and control sequences of a journal line are shown, not obeyed."""
    line = told({"kind": "evidence", "lines": ["[bold]x[/bold] \x1b[31mred"]})[0]
    assert "[bold]x[/bold]" in line
    assert "\x1b" not in line


def test_table_aligns_numbers_right():
    """Columns of numbers stand right, texts left."""
    assert plain_table(["n", "name"], [["1", "a"], ["12", "bc"]]) == [" n  name", " 1  a", "12  bc"]
    assert plain_table([], []) == []
