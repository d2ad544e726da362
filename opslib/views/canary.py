"""What the canary shows: the verdict, what was asked and answered, and where it parts."""

from opslib.domain.canary import CanaryReport, Continuation
from opslib.domain.states import State
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown

_LONGEST = 70  # characters of an answer that are shown


def canary_panel(host: str, report: CanaryReport, *, kept_in: str = "") -> Shown:
    """The verdict with every question and its answer; `kept_in` names the file of the fingerprint."""
    now = report.fingerprint
    rows = [
        ("weights", now.model_digest[:12] or "-"),
        ("dtype, engine", f"{now.dtype}, {now.engine or '-'}"),
        *((check.name.replace("_", " "), check.summary.removeprefix("plain text: ")) for check in report.checks),
        *((_short(each.prompt), _answer(each)) for each in now.continuations),
        *([("compared with", report.compared_with)] if report.compared_with else []),
        *([("changed since", "; ".join(report.changed))] if report.changed else []),
    ]
    notes = [f"Fingerprint: {kept_in}"] if kept_in else []
    if report.verdict == "corrupt" and report.compared_with:
        notes = ["Was the first one the bad one? Delete its file below runs/fingerprints, and run this again."]
    if report.state is State.CRITICAL:
        notes.append("Next: 10-verify-download with level=digest says which file is damaged.")
    return answer_panel(
        host, report.state, report.summary, rows=rows, columns=("asked", "answer"), quoted=report.evidence, notes=notes
    )


def _answer(answered: Continuation) -> str:
    if answered.error:
        return f"not answered: {answered.error}"
    return f"{_short(answered.text)} ({len(answered.tokens) or '?'} tokens, {answered.finish_reason})"


def _short(text: str) -> str:
    shown = repr(text)[1:-1]
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
