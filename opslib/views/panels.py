"""Answers as panels: headline, table, quoted lines, diff; each as HTML and as the same plain text."""

from collections.abc import Sequence
from html import escape

from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.views.shown import Shown
from opslib.views.tables import Row, table, text_table
from opslib.views.theme import MUTED, TEXT_COLOURS, headline, note, state_text

_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:0.9em;line-height:1.45"
_WRAP = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab's own style breaks words
_HANGING = "padding-left:2em;text-indent:-2em"  # a long line is told from the next one
_DIFF_COLOURS = {"+": TEXT_COLOURS[State.OK], "-": TEXT_COLOURS[State.CRITICAL], "@": TEXT_COLOURS[State.UNKNOWN]}


def answer_panel(
    host: str,
    state: State,
    summary: str,
    *,
    rows: Sequence[Row] = (),
    columns: Sequence[str] = (),
    quoted: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Shown:
    """A section's answer: who it is about, its state and sentence, then numbers, quoted lines and notes."""
    html = [headline(state, summary, host=host)]
    text = [f"{state_text(state)}  {host}: {summary}"]
    if rows:
        html.append(table(rows, columns))
        text += ["", text_table(rows, columns)]
    if quoted:
        html.append(quote(quoted))
        text += ["", *(f"  | {line}" for line in quoted)]
    for line in notes:
        html.append(note(line))
        text.append(line)
    return Shown("".join(html), "\n".join(text))


def quote(lines: Sequence[str]) -> str:
    """Lines of evidence as an HTML block that keeps their spacing."""
    style = f"{_MONO};border-left:3px solid {MUTED};margin:6px 0;padding:4px 12px;"
    style += _WRAP
    body = "".join(f'<span style="display:block;{_HANGING}">{escape(line)}\n</span>' for line in lines)
    return f'<pre style="{style}">{body}</pre>'


def diff_html(diff: str) -> str:
    """A unified diff with added and removed lines coloured (and marked, where colours are lost)."""
    body = "".join(_diff_line(line) for line in diff.splitlines())
    return f'<pre style="{_MONO};margin:6px 0;padding:4px 12px;{_WRAP}">{body}</pre>'


def _diff_line(line: str) -> str:
    colour = MUTED if line.startswith(("+++", "---")) else _DIFF_COLOURS.get(line[:1])
    text = escape(line) + "\n"
    return f'<span style="color:{colour}">{text}</span>' if colour else text


def plan_panel(host: str, summary: str, diff: str, steps: Sequence[str], *, state: State = State.OK) -> Shown:
    """A planned change: its sentence, its steps in order, and the diff of every file."""
    listed = "".join(f"<li>{escape(step)}</li>" for step in steps)
    html = (
        headline(state, summary, host=host)
        + (f'<ol style="margin:4px 0">{listed}</ol>' if steps else "")
        + (diff_html(diff) if diff else "")
    )
    numbered = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    text = [f"{state_text(state)}  {host}: {summary}", *numbered, *([diff] if diff else [])]
    return Shown(html, "\n".join(text))


def error_panel(host: str, error: OpslibError) -> Shown:
    """Why a question stays open or an act was refused, and what to do next."""
    word = "refused" if error.exit_code == 4 else "could not find out"
    hint = note(f"Next: {error.hint}") if error.hint else ""
    html = headline(State.UNKNOWN, f"{word}: {error.message}", host=host) + hint
    return Shown(html, f"{state_text(State.UNKNOWN)}  {word}: {error}")


def skipped_panel(name: str, stopper: str, reason: str) -> Shown:
    """A section that was not run since an earlier one stopped the runbook."""
    sentence = f"{name} was not run: {stopper} stopped this runbook ({reason})"
    return Shown(note(sentence), f"-  {sentence}")


def next_runbook(shown: Shown, runbook: str, why: str, command: str, *, href: str = "") -> Shown:
    """The same panel with a link to the runbook that goes on from here, and the command that runs it headless."""
    link = f'<a href="{escape(href or f"{runbook}.ipynb")}">{escape(runbook)}</a>'
    html = f'<p style="margin:8px 0">→ {escape(why)}: {link}, or <code>{escape(command)}</code></p>'
    return Shown(f"{shown.html}{html}", f"{shown.text}\n→ {why}: {command}".strip(), png=shown.png)
