"""What does systemd say?"""

from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.states import State
from opslib.views.panels import answer_panel
from opslib.workflow.facts import gather_unit_status


@section("show-unit")
def show_unit(run: Run) -> Answer:
    """The unit as systemd sees it now; "active (running)" with restarts has crashed and was started again."""
    status = gather_unit_status(run.host, run.parameters.unit)
    state, summary = judge_unit(status)
    rows = [
        ("active", f"{status.active_state} ({status.sub_state})"),
        ("result", status.result),
        ("restarts", str(status.n_restarts)),
        ("invocation", status.invocation_id or "-"),
        ("last exit", status.exit_words or "-"),
        ("started at", str(status.exec_main_start_at or "-")),
        ("unit file", status.fragment_path or "-"),
    ]
    result = SectionResult(state=state, summary=summary, value=status.model_dump(mode="json"), is_final=False)
    return result, answer_panel(run.alias, state, summary, rows=rows, columns=("asked", "answer"))


def judge_unit(status: UnitStatus) -> tuple[State, str]:
    """State and sentence of a unit; whether it *serves* is not asked here."""
    if not status.is_installed:
        return State.CRITICAL, f"systemd knows no unit {status.unit}"
    if status.active_state == "failed":
        return State.CRITICAL, f"failed with result {status.result}, {status.exit_words}"
    if status.n_restarts:
        return State.WARNING, f"{status.active_state} ({status.sub_state}), but restarted {status.n_restarts} times"
    if status.active_state == "active":
        return State.OK, f"active ({status.sub_state}), no restarts"
    return State.WARNING, f"{status.active_state} ({status.sub_state})"
