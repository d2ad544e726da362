"""The verdict card: cause, confidence, quoted lines, what stands around it, and the ways out in order."""

from html import escape

from opslib.domain.verdict_card import VerdictCard, quoted_line, remedy_lines
from opslib.views.panels import diff_html, quote
from opslib.views.shown import Shown
from opslib.views.theme import headline, state_text


def verdict_panel(host: str, card: VerdictCard) -> Shown:
    """The same card as HTML and as text; the first quoted line is the one that decides."""
    quoted = [quoted_line(line) for line in card.diagnosis.evidence]
    html = [headline(card.state, card.headline, host=host), quote(quoted) if quoted else ""]
    for title, lines in card.parts:
        html.append(f"<details><summary>{escape(title)} ({len(lines)})</summary>{quote(lines)}</details>")
    return Shown("".join(html) + _ways_out(card), verdict_text(host, card))


def _ways_out(card: VerdictCard) -> str:
    items = []
    for remedy in card.diagnosis.remedies:
        told = (("type", remedy.command), ("costs", remedy.cost), ("check", remedy.check))
        lines = [escape(remedy.text)]
        lines += [f"{name}: <code>{escape(text)}</code>" for name, text in told if text]
        items.append(f"<li>{'<br>'.join(lines)}{diff_html(remedy.diff) if remedy.diff else ''}</li>")
    listed = "".join(items)
    return f'<p style="margin:4px 0"><b>Ways out</b></p><ol style="margin:4px 0">{listed}</ol>' if items else ""


def verdict_text(host: str, card: VerdictCard) -> str:
    """The card for a terminal; without a host it is about a file."""
    lines = [f"{state_text(card.state)}  {f'{host}: ' if host else ''}{card.headline}"]
    lines += [f"  | {quoted_line(line)}" for line in card.diagnosis.evidence]
    for title, told in card.parts:
        lines += ["", f"{title}:", *(f"  {line}" for line in told)]
    if card.diagnosis.remedies:
        lines += ["", "Ways out:"]
    for number, remedy in enumerate(card.diagnosis.remedies, 1):
        first, *rest = remedy_lines(remedy)
        lines += [f"  {number}. {first}", *(f"   {line}" for line in rest)]
    return "\n".join(lines)
