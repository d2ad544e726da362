"""The verdict card: cause, confidence, quoted lines, what follows from it, what was ruled out, remedies."""

from collections.abc import Iterator, Sequence
from html import escape

from opslib.domain.diagnosis import Diagnosis, Evidence
from opslib.domain.states import State
from opslib.views.panels import quote
from opslib.views.shown import Shown
from opslib.views.theme import headline, state_text

Part = tuple[str, Sequence[str]]


def diagnosis_panel(host: str, state: State, diagnosis: Diagnosis, *, missing: Sequence[str] = ()) -> Shown:
    """The same card as HTML and as text; the first quoted line is the one that decides."""
    summary = f"{diagnosis.cause} ({diagnosis.confidence} confidence): {diagnosis.summary}"
    html, text = [headline(state, summary, host=host)], [f"{state_text(state)}  {host}: {summary}"]
    if diagnosis.evidence:
        quoted = [quoted_line(line) for line in diagnosis.evidence]
        html.append(quote(quoted))
        text += ["", *(f"  | {line}" for line in quoted)]
    for title, lines in _parts(diagnosis, missing):
        html.append(f"<details><summary>{escape(title)} ({len(lines)})</summary>{quote(lines)}</details>")
        text += ["", f"{title}:", *(f"  {line}" for line in lines)]
    for remedy in diagnosis.remedies:
        told = f"{remedy.text}{f' ({remedy.command})' if remedy.command else ''}"
        html.append(f'<p style="margin:4px 0"><b>Way out:</b> {escape(told)}</p>')
        text.append(f"Way out: {told}")
    return Shown("".join(html), "\n".join(text))


def quoted_line(line: Evidence) -> str:
    """A line of evidence with its process and time."""
    clock = (line.logged_at or "")[:19].replace("T", " ")
    who = " ".join(part for part in (clock, line.process) if part)
    return f"{who}: {line.text}" if who else line.text


def _parts(diagnosis: Diagnosis, missing: Sequence[str]) -> Iterator[Part]:
    if diagnosis.consequences:
        yield "What follows from it", [quoted_line(line) for line in diagnosis.consequences]
    if diagnosis.ruled_out:
        yield "Ruled out", [f"{entry.cause}: {entry.reason}" for entry in diagnosis.ruled_out]
    if missing:
        yield "Could not be had", list(missing)
