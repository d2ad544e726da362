"""A preflight as a person reads it: what is not good first, then every check."""

from opslib.domain.preflight import PreflightReport
from opslib.domain.states import State
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown
from opslib.views.survey import fitted

COLUMNS = ("check", "state", "finding")
_ORDER = (State.CRITICAL, State.WARNING, State.UNKNOWN)


def preflight_panel(report: PreflightReport) -> Shown:
    """The verdict, each check, and for those that are not good the evidence and what to do."""
    rows = [(check.name, check.state, check.summary) for check in report.checks]
    return answer_panel(
        report.host,
        report.state,
        report.summary,
        rows=rows,
        columns=COLUMNS,
        notes=[*_notes(report), f"Asked in {report.duration_s:.1f} s, in one round trip; nothing was changed."],
    )


def preflight_text(report: PreflightReport) -> str:
    """The same for a terminal."""
    rows = [(check.name, check.state, check.summary) for check in report.checks]
    return "\n".join([fitted(rows, COLUMNS, "finding"), *(("", *_notes(report)) if _notes(report) else ())])


def _notes(report: PreflightReport) -> list[str]:
    """What to do about each check that is not good, the worst first, with its evidence."""
    found = [check for state in _ORDER for check in report.checks if check.state is state]
    notes = []
    for check in found:
        evidence = "; ".join(line for line in check.evidence if line not in check.summary)
        words = " ".join(filter(None, (evidence, f"Next: {check.next_step}" if check.next_step else "")))
        notes += [f"{check.name}: {words}"] if words else []
    return notes
