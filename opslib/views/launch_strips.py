"""Phases and both health signals of a launch on one line of time, as blocks that need no picture and no script."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from opslib.domain.launch_phases import PhaseSpan
from opslib.domain.launch_story import LaunchStory, Mark
from opslib.domain.states import State
from opslib.views.theme import BLUE, MUTED, ORANGE, STATE_COLOURS

_PHASE_COLOURS = (BLUE, "#0550ae")  # in turn: where one ends the next is told from it
_GREY = "#6e7781"
_UNIT_COLOURS = {"active": BLUE, "failed": STATE_COLOURS[State.CRITICAL]}
_HEALTH_COLOURS = {"200": STATE_COLOURS[State.OK], "closed": _GREY}
_CHARACTERS = 130  # of a label, over the whole width


class Block(NamedTuple):
    """What was so from one second to another."""

    began_s: float
    ended_s: float
    text: str
    colour: str


def strips_html(story: LaunchStory) -> str:
    """One strip for the phases, one for systemd, one for `/health`, under them the seconds; red where it crashed."""
    assert story.status is not None
    end_s = max(story.status.elapsed_s, 0.001)
    crashes = [(crash.seen_at - story.status.since).total_seconds() for crash in story.status.crashes]
    rows = [
        _row(name, "".join(_blocks(blocks, end_s)) + "".join(_crash(at_s, end_s) for at_s in crashes))
        for name, blocks in strips(story)
    ]
    ticks = "".join(f"<span>{end_s * part / 4:.{0 if end_s > 40 else 1}f}&nbsp;s </span>" for part in range(5))
    axis = f'<span style="flex:1;display:flex;justify-content:space-between;color:{MUTED}">{ticks}</span>'
    axis = f'<div style="display:flex;font-size:0.85em">{_name("")}{axis}</div>'
    return f'<div style="max-width:980px;margin:8px 0">{"".join(rows)}{axis}</div>'


def strips_text(story: LaunchStory) -> list[str]:
    """The same in words, a line each."""
    phases, *signals = strips(story)
    told = " · ".join(f"{block.text} {block.ended_s - block.began_s:.1f} s" for block in phases[1])
    lines = [f"phases   {told}"] if told else []
    return lines + [
        f"{name:<8} " + " → ".join(f"{block.began_s:.1f} s {block.text}" for block in blocks)
        for name, blocks in signals
        if blocks
    ]


def strips(story: LaunchStory) -> tuple[tuple[str, list[Block]], ...]:
    """The blocks of each strip, in seconds since the launch began."""
    assert story.status is not None
    status, end_s = story.status, story.status.elapsed_s
    phases = [
        Block(
            max(0.0, (span.began_at - status.since).total_seconds()),
            ((span.ended_at or status.at) - status.since).total_seconds(),
            _phase_words(span),
            _PHASE_COLOURS[n % 2],
        )
        for n, span in enumerate(story.phases)
    ]
    return (
        ("phases", phases),
        ("systemd", list(_signal(story.units, end_s, _UNIT_COLOURS, _GREY))),
        ("/health", list(_signal(story.health, end_s, _HEALTH_COLOURS, ORANGE))),
    )


def _phase_words(span: PhaseSpan) -> str:
    return f"{span.title} {span.n}/{span.total}" if span.total else span.title


def _signal(marks: Sequence[Mark], end_s: float, colours: dict[str, str], other: str) -> Iterator[Block]:
    last = Mark(at_s=end_s, text="")
    for mark, following in pairwise([*marks, last]):
        if following.at_s > mark.at_s:
            yield Block(mark.at_s, following.at_s, mark.text, colours.get(mark.text.partition(" ")[0], other))


def _blocks(blocks: Sequence[Block], end_s: float) -> Iterator[str]:
    at_s = 0.0
    for block in blocks:
        if block.began_s > at_s:
            yield f'<span style="width:{100 * (block.began_s - at_s) / end_s:.2f}%"></span>'
        percent = max(0.0, 100 * (block.ended_s - max(at_s, block.began_s)) / end_s)
        yield _block(block, percent)
        at_s = max(at_s, block.ended_s)


def _block(block: Block, percent: float) -> str:
    label = block.text if len(block.text) < percent * _CHARACTERS / 100 else ""
    title = escape(f"{block.text}: {block.began_s:.1f} to {block.ended_s:.1f} s")
    style = (
        f"width:{percent:.2f}%;background:{block.colour};color:#fff;overflow:hidden;white-space:nowrap;"
        "text-align:center;font-size:0.85em;line-height:18px"
    )
    return f'<span title="{title}" style="{style}">{escape(label)} </span>'


def _crash(at_s: float, end_s: float) -> str:
    left = min(100.0, 100 * at_s / end_s)
    style = f"position:absolute;left:calc({left:.2f}% - 3px);width:3px;height:18px"
    return (
        f'<span title="crash seen at {at_s:.1f} s" style="{style};background:{STATE_COLOURS[State.CRITICAL]}"></span>'
    )


def _row(name: str, blocks: str) -> str:
    style = "flex:1;display:flex;position:relative;height:18px;background:rgba(128,128,128,.18)"
    strip = f'<span style="{style}">{blocks}</span>'
    return f'<div style="display:flex;align-items:center;margin:3px 0">{_name(name)}{strip}</div>'


def _name(name: str) -> str:
    return f'<span style="width:72px;flex:none;color:{MUTED}">{escape(name)} </span>'
